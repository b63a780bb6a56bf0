"""KV in encrypted homes: it leaves in a bundle, comes back, is verified and pinned, as in the clear."""

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from kvchat.app import unlock
from kvchat.app.config import read_settings
from kvchat.engine.api.ids import u32le
from kvchat.engine.memory.disk.cache_admin import CacheAdmin
from tests.cli.command_line import Run
from tests.cli.secret_home import CHEAP, Give, files_with

pytestmark = [pytest.mark.cpu, pytest.mark.usefixtures("loading_pays")]

QUESTION, LAST = "My name is Ana and I live in Oslo. " * 20, "Where do I live?"

Kvchat = Callable[..., Any]


@pytest.fixture
def kvchat(home: Path, passphrase: Give, run: Run, monkeypatch: pytest.MonkeyPatch) -> Kvchat:
    """Run a command line in one of several encrypted homes, and return what it prints as JSON."""
    passphrase("open sesame")

    def call(*words: str, at: str) -> Any:
        monkeypatch.setenv("KVCHAT_HOME", str(home / at))
        if not (home / at).exists():
            assert run("encrypt", "on", *CHEAP)[0] == 0
        return run.json(*words)

    return call


def admin() -> CacheAdmin:
    """Open the encrypted blocks of the home that was used last."""
    settings = unlock.unlocked(read_settings())
    return CacheAdmin(settings.paths.cache_dir, encryptor=settings.engine.encryptor)


def test_kv_goes_from_one_encrypted_home_to_another_and_is_verified_and_kept_there(
    home: Path, tiny_model: Path, tmp_path: Path, kvchat: Kvchat
) -> None:
    """Traps 26 and 28: only what is new is computed, and nobody else is served before it was verified."""
    model = ("-m", str(tiny_model))
    ask = ("ask", *model, "--max-tokens", "12", "--temperature", "0")
    bundle = tmp_path / "demo.kvchat"
    kvchat(*ask, "--new", "demo", QUESTION, at="here")
    kvchat("export", "demo", "-o", str(bundle), at="here")
    expected = kvchat(*ask, "-s", "demo", LAST, at="here")

    (imported,) = kvchat("import", str(bundle), *model, at="there")
    assert (imported["kv"], imported["turns"]) == ("untrusted", 2)
    apart = kvchat(*ask, "--new", "apart", QUESTION, at="there")
    assert apart["usage"]["cached_tokens"] == 0
    kvchat("sessions", "rm", "apart", at="there")
    verified = kvchat("sessions", "verify", *model, "--all", "demo", at="there")
    assert verified["verified"] == verified["blocks"] > 2
    assert (verified["different"], verified["trusted"]) == (0, True)
    kvchat("sessions", "pin", "demo", at="there")
    with closing(admin()) as there:
        kept = {block.name for block in there.kept_blocks()}
        there.shrink(0)
        assert {block.name for block in there.blocks()} == kept
        assert kept
    found = kvchat(*ask, "-s", "demo", LAST, at="there")
    assert found["text"] == expected["text"]
    assert found["usage"]["cached_tokens"] >= 64 * (imported["tokens"] // 64)
    shown = kvchat("sessions", "show", "demo", at="there")
    ids = u32le(shown["turns"][0]["token_ids"][:4])
    assert files_with(home / "there", b"Oslo", ids) == []
