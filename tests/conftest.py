"""What every test gets: a kvchat home of its own, no network, and a reason where a device is missing.

Imports no torch, so that `pure` tests also run where there is none.
"""

import atexit
import gc
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

from kvchat.engine.memory import rates
from kvchat.engine.tiering import persisted_rates
from tests.covering import leave_the_rest_to_slow_tests
from tests.fork_server import LOADING_PAYS, let_loading_pay
from tests.quick_disk import quick_place
from tests.sharing import read_a_share_first

if TYPE_CHECKING:
    from kvchat.session.template.chat_template import ChatTemplate

# Examples may load a model or touch a disk under load; a deadline would only measure the machine.
# They are the same in every run, so that a change is judged by itself; the slow tests look for new ones.
settings.register_profile("kvchat", deadline=None, print_blob=True, derandomize=True)
settings.load_profile("kvchat")


@pytest.fixture(autouse=True, scope="session")
def _away_from_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Point kvchat at a throw-away home and model loading at local files, here and in child processes."""
    home = tmp_path_factory.mktemp("kvchat-home")
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("KVCHAT_")]:
            patch.delenv(name)
        patch.setenv("KVCHAT_HOME", str(home))
        patch.setenv("HF_HUB_OFFLINE", "1")
        yield home


@pytest.fixture
def quick_path(tmp_path: Path) -> Iterator[Path]:
    """A directory of the test alone, in memory where that is possible."""
    place = quick_place()
    if place is None:
        yield tmp_path
        return
    with TemporaryDirectory(prefix="kvchat-test-", dir=place) as directory:
        yield Path(directory)


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> "ChatTemplate":
    """The starter's chat template, with a small tokenizer."""
    from kvchat.session.template.chat_template import ChatTemplate
    from tests.tiny_models import STARTER, write_model

    return ChatTemplate.from_dir(write_model(tmp_path_factory.mktemp("model"), STARTER))


@pytest.fixture
def loading_pays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Load what can be loaded, in this process and in those that are forked: see `let_loading_pay`."""
    for owner, name in ((rates, "PRIOR_TOKEN_S"), (persisted_rates, "read_kept")):
        monkeypatch.setattr(owner, name, getattr(owner, name))  # as they are behind the test
    let_loading_pay()
    monkeypatch.setenv(LOADING_PAYS, "1")


def pytest_collection(session: pytest.Session) -> None:
    read_a_share_first(session.config)


def pytest_collection_finish() -> None:
    """Look for garbage only among what tests make: every window does so, and half a million objects of what
    was imported take half a second each time.
    """
    gc.collect()
    gc.freeze()


def pytest_configure() -> None:
    atexit.register(_leave_quietly)


def _leave_quietly() -> None:
    """Keep triton's complaints about its own bindings from following pytest's closing line."""
    if "triton" in sys.modules:
        sys.stderr.flush()
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    leave_the_rest_to_slow_tests(items)
    wanted = [item for item in items if item.get_closest_marker("gpu")]
    if wanted and not _has_cuda():
        for item in wanted:
            item.add_marker(pytest.mark.skip(reason="this machine has no CUDA device"))


def _has_cuda() -> bool:
    import torch

    return torch.cuda.is_available()
