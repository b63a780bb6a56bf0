"""Fixtures with a model in them. Nothing here loads torch before a test asks for it."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from kvchat.engine.engine import Engine
    from tests.engine.tiny_models import RecordingRunner

TinyModels = Callable[..., Path]
OpenEngine = Callable[..., "Engine"]
OpenRecorded = Callable[..., "tuple[Engine, RecordingRunner]"]


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> TinyModels:
    """Return a function (kind, **config changes) -> directory; each model is written once."""
    from tests.engine.tiny_models import make_config, save_model

    known: dict[str, Path] = {}

    def find(kind: str, eos_token_id: list[int] | None = None, **changes: Any) -> Path:
        name = repr((kind, eos_token_id, sorted(changes.items())))
        if name not in known:
            model_dir = tmp_path_factory.mktemp(kind)
            known[name] = save_model(make_config(kind, **changes), model_dir, eos_token_id)
        return known[name]

    return find


@pytest.fixture
def model_dir(tiny: TinyModels) -> Path:
    """A model of full layers alone, where a module has none of its own."""
    return tiny("llama")


@pytest.fixture
def unseen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let models be checked as if this process had seen none, where a test changes what is checked."""
    monkeypatch.setattr("tests.engine.tiny_models.SEEN", tmp_path / "seen")


@pytest.fixture
def native_kernels() -> None:
    """Skip the test where no native kernels can be compiled."""
    from tests.engine.kernels.native_library import compiled

    if (problem := compiled()) is not None:
        pytest.skip(problem)


@pytest.fixture
def engines() -> "Iterator[list[Engine]]":
    """Engines whose books are checked, and which are closed, behind the test."""
    opened: list[Engine] = []
    yield opened
    for engine in opened:
        engine.check_integrity()
        engine.close()


@pytest.fixture
def open_recorded(engines: "list[Engine]") -> OpenRecorded:
    """Return a function that opens engines and their runners' records; what a test leaves open is closed."""
    from tests.engine import tiny_models

    def open_one(model_dir: Path, **settings: Any) -> "tuple[Engine, RecordingRunner]":
        engine, recorder = tiny_models.open_recorded(model_dir, **settings)
        engines.append(engine)
        return engine, recorder

    return open_one


@pytest.fixture
def open_engine(open_recorded: OpenRecorded) -> OpenEngine:
    def open_one(model_dir: Path, **settings: Any) -> "Engine":
        return open_recorded(model_dir, **settings)[0]

    return open_one
