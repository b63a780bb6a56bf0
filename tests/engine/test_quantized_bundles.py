"""A session with a quantised cache, sent to another machine through the command line."""

import io
import json
from pathlib import Path
from typing import Any

import pytest
import transformers

from kvchat.cli.main import run
from tests.engine.tiny_models import make_config, save_model
from tests.tiny_models import write_model

pytestmark = pytest.mark.cpu

QUESTIONS = ("My name is Ana and I live in Oslo. " * 26, "Where do I live?")


@pytest.fixture(scope="module")
def talking(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with a tokenizer and a template."""
    directory = write_model(tmp_path_factory.mktemp("talking"))
    num_tokens = len(json.loads((directory / "tokenizer.json").read_text())["model"]["vocab"])
    config = make_config("llama", vocab_size=num_tokens, max_position_embeddings=4096)
    assert isinstance(config, transformers.LlamaConfig)
    return save_model(config, directory)


@pytest.mark.usefixtures("loading_pays")
def test_a_bundle_of_quantized_blocks_goes_on_elsewhere_and_is_verified(
    talking: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO()))
    model = ["-m", str(talking), "--cache-format", "int4; layers 0=exact"]
    ask = ["ask", *model, "--max-tokens", "8", "--temperature", "0", "--json"]

    def kvchat(home: str, *words: str) -> Any:
        monkeypatch.setenv("KVCHAT_HOME", str(tmp_path / home))
        capsys.readouterr()
        assert run(list(words)) == 0
        out = capsys.readouterr().out
        return json.loads(out) if out else None

    asked = kvchat("here", *ask, "--new", "demo", QUESTIONS[0])
    assert asked["usage"]["prompt_tokens"] > 3 * 64
    kvchat("here", "export", "demo", "-o", str(tmp_path / "demo.kvchat"), "-q")
    stayed = kvchat("here", *ask, "-s", "demo", QUESTIONS[1])
    assert stayed["usage"]["cached_tokens"] > 3 * 64
    (imported,) = kvchat("there", "import", str(tmp_path / "demo.kvchat"), *model, "--json")
    assert imported["kv"] == "untrusted"
    verified = kvchat("there", "sessions", "verify", *model, "--all", "demo", "--json")
    assert (verified["different"], verified["wrong_logits"], verified["trusted"]) == (0, 0, True)
    assert verified["verified"] == verified["blocks"] >= 4
    moved = kvchat("there", *ask, "-s", "demo", QUESTIONS[1])
    assert (moved["text"], moved["usage"]) == (stayed["text"], stayed["usage"])
    assert moved["loaded"]["disk"] == imported["tokens"] - 1
    assert moved["exact"] is False
    (listed,) = kvchat("there", "sessions", "list", "--json")
    assert listed["exact"] is False
    sampled = kvchat("here", "sessions", "verify", *model, "--sample", "3", "demo", "--json")
    assert (sampled["different"], sampled["wrong_logits"]) == (0, 0)
