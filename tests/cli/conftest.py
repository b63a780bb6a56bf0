"""A home of its own for each test, and a model directory that needs no engine."""

import io
import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy
import pytest
from safetensors.numpy import save_file as save_arrays

from kvchat.app.config import read_settings
from kvchat.app.open_store import open_store
from kvchat.app.retention.session_removal import SessionService
from tests.cli.command_line import Run
from tests.cli.secret_home import Give
from tests.fork_server import ForkServer
from tests.tiny_models import write_model


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty kvchat home, an empty directory to work in, and an empty standard input."""
    monkeypatch.setenv("KVCHAT_HOME", str(tmp_path / "home"))
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO()))
    return tmp_path / "home"


@pytest.fixture
def store() -> Iterator[SessionService]:
    """The sessions of the home."""
    with closing(open_store(read_settings())) as store:
        yield store


@pytest.fixture
def model_dir(tmp_path: Path) -> Path:
    """A directory that looks like a model up to the moment its weights are loaded."""
    directory = write_model(tmp_path / "model")
    (directory / "config.json").write_text(json.dumps({"model_type": "llama"}))
    save_arrays({"weight": numpy.zeros(1, dtype=numpy.float32)}, directory / "model.safetensors")
    return directory


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Full and sliding layers with random weights; it hardly ever ends its answer."""
    from safetensors.torch import load_file, save_file

    from tests.engine.tiny_models import make_config, save_model

    directory = write_model(tmp_path_factory.mktemp("tiny"))
    vocabulary = json.loads((directory / "tokenizer.json").read_text())["model"]["vocab"]
    config = make_config("qwen3", vocab_size=len(vocabulary), max_position_embeddings=8192)
    weights = save_model(config, directory) / "model.safetensors"
    tensors = load_file(weights)
    tensors["lm_head.weight"][vocabulary["<|end|>"]] = 0  # some other token is always likelier
    save_file(tensors, weights, metadata={"format": "pt"})
    return directory


@pytest.fixture(scope="session")
def fork_server() -> Iterator[ForkServer]:
    """What starts the real program where the start itself is not what is tested."""
    server = ForkServer()
    yield server
    server.close()


@pytest.fixture
def quick_children(fork_server: ForkServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let processes that are started beside an answer or a window have imported torch already."""
    monkeypatch.setattr("sys.executable", str(fork_server.python))


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    return Run(capsys)


@pytest.fixture
def default_model(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have every command use the tiny model unless another is named."""
    monkeypatch.setenv("KVCHAT_MODEL", str(tiny_model))


@pytest.fixture
def ask(run: Run, tiny_model: Path) -> Run:
    """Ask the tiny model for short answers."""
    return run.with_words("ask", "-m", str(tiny_model), "--max-tokens", "8")


@pytest.fixture
def passphrase(monkeypatch: pytest.MonkeyPatch) -> Give:
    def give(passphrase: str) -> None:
        monkeypatch.setenv("KVCHAT_PASSPHRASE", passphrase)

    return give
