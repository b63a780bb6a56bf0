"""Latents are blocks as all others: shared, copied before a write, demoted, stored and sent, in every format.

What an answer must be is told by transformers in the exact format, and by an engine of its own otherwise.
"""

import io
import json
from pathlib import Path
from typing import Any

import pytest
import transformers

from kvchat.cli.main import run
from tests.engine.block_life import (
    Opened,
    Wanted,
    check_a_fork_beside_its_parent,
    check_what_another_engine_finds,
    loaded_after_a_demotion,
)
from tests.engine.conftest import OpenEngine
from tests.engine.latent_models import KINDS, SIZES, model_of
from tests.engine.tiny_models import answer, finish, reference, save_model, submit, token_ids
from tests.tiny_models import write_model

pytestmark = pytest.mark.cpu

KIND = "V3, YaRN"
TOKEN_BYTES = {"exact": 3 * (16 + 8) * 4, "fp8": 3 * (16 + 4 + 2 * 8)}


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return model_of(KIND, tmp_path_factory.mktemp("latent"))


@pytest.fixture(params=TOKEN_BYTES)
def cache_format(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def opened(model_dir: Path, cache_format: str, open_engine: OpenEngine) -> Opened:
    """Return a function that opens an engine of the format."""
    return lambda **settings: open_engine(model_dir, cache_format=cache_format, **settings)


@pytest.fixture
def wanted(model_dir: Path, cache_format: str, opened: Opened) -> Wanted:
    """Return a function (prompt, number of tokens) -> the answer, in whose computation nothing is reused."""
    if cache_format == "exact":
        return lambda prompt, num_tokens: reference(model_dir).answer(prompt, num_tokens)
    return lambda prompt, num_tokens: answer(opened(), prompt, num_tokens).token_ids


def test_sessions_share_the_blocks_of_a_common_beginning(opened: Opened, wanted: Wanted) -> None:
    engine, prompt = opened(), token_ids(80)
    first = submit(engine, prompt, 4)
    finish(engine, first)
    (before,) = engine.snapshot().groups
    turn = prompt[:64] + token_ids(10, seed=1)
    second = submit(engine, turn, 8)
    result = finish(engine, second)
    (after,) = engine.snapshot().groups
    assert (result.usage.cached_tokens, result.token_ids) == (64, wanted(turn, 8))
    assert after.shared_blocks == 4
    assert after.used_blocks - before.used_blocks == 2


def test_a_fork_copies_a_tail_of_latents_before_it_writes(opened: Opened, wanted: Wanted) -> None:
    """Trap 11."""
    check_a_fork_beside_its_parent(opened(), wanted, 20)


def test_a_demoted_sequence_goes_on_from_host_memory(
    cache_format: str, opened: Opened, wanted: Wanted
) -> None:
    token_bytes = TOKEN_BYTES[cache_format]
    engine = opened(device_bytes=600 * token_bytes, host_bytes=3000 * token_bytes)
    loaded, num_tokens = loaded_after_a_demotion(engine, wanted)
    assert loaded.host == num_tokens


def test_what_is_stored_on_disk_comes_back_in_another_engine(
    tmp_path: Path, opened: Opened, wanted: Wanted
) -> None:
    check_what_another_engine_finds(opened, wanted, tmp_path / "cache", 8)


# A bundle, through the command line

QUESTIONS = ("My name is Ana and I live in Oslo. " * 6, "Where do I live?")


@pytest.fixture(scope="module")
def talking(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A latent model with a tokenizer and a template."""
    directory = write_model(tmp_path_factory.mktemp("talking"))
    num_tokens = len(json.loads((directory / "tokenizer.json").read_text())["model"]["vocab"])
    changes = {"vocab_size": num_tokens, "max_position_embeddings": 4096}
    config = transformers.DeepseekV3Config(**SIZES | KINDS[KIND][1] | changes)
    return save_model(config, directory)


@pytest.mark.usefixtures("loading_pays")
def test_a_bundle_of_latents_goes_on_elsewhere_and_is_verified(
    cache_format: str,
    talking: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Trap 27: there are no values beside latents, and nothing of size 0 is written."""
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO()))
    model = ["-m", str(talking), "--cache-format", cache_format]
    ask = ["ask", *model, "--max-tokens", "8", "--temperature", "0", "--json"]

    def kvchat(home: str, *words: str) -> Any:
        monkeypatch.setenv("KVCHAT_HOME", str(tmp_path / home))
        capsys.readouterr()
        assert run(list(words)) == 0
        out = capsys.readouterr().out
        return json.loads(out) if out else None

    kvchat("here", *ask, "--new", "demo", QUESTIONS[0])
    kvchat("here", "export", "demo", "-o", str(tmp_path / "demo.kvchat"), "-q")
    stayed = kvchat("here", *ask, "-s", "demo", QUESTIONS[1])
    (imported,) = kvchat("there", "import", str(tmp_path / "demo.kvchat"), *model, "--json")
    assert imported["kv"] == "untrusted"
    verified = kvchat("there", "sessions", "verify", *model, "--all", "demo", "--json")
    assert (verified["different"], verified["wrong_logits"], verified["trusted"]) == (0, 0, True)
    assert verified["verified"] == verified["blocks"] >= 2
    moved = kvchat("there", *ask, "-s", "demo", QUESTIONS[1])
    assert (moved["text"], moved["usage"]) == (stayed["text"], stayed["usage"])
    assert moved["loaded"]["disk"] == imported["tokens"] - 1
    assert moved["exact"] is (cache_format == "exact")
    (listed,) = kvchat("there", "sessions", "list", "--json")
    assert listed["exact"] is (cache_format == "exact")
