"""`kvchat models`: what is in the cache of Hugging Face's libraries, whole or not, and the starter."""

import json
import shutil
from pathlib import Path

import pytest

from tests.cli.command_line import Run

pytestmark = pytest.mark.pure


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    hub = tmp_path / "hub"
    monkeypatch.setenv("HF_HUB_CACHE", str(hub))
    return hub


def cached(hub: Path, name: str, model_dir: Path, revision: str = "abc") -> Path:
    """Put a model where a download would."""
    repo = hub / ("models--" + name.replace("/", "--"))
    snapshot = repo / "snapshots" / revision
    shutil.copytree(model_dir, snapshot)
    (repo / "refs").mkdir(exist_ok=True)
    (repo / "refs" / "main").write_text(revision)
    return snapshot


def listed(run: Run) -> dict[str, dict[str, object]]:
    return {one["name"]: one for one in run.json("models")}


def test_the_starter_is_always_there_and_fits(hub: Path, run: Run) -> None:
    starter = listed(run)["starter"]
    assert starter["fits"] is True
    assert starter["problem"] is None
    assert isinstance(starter["num_bytes"], int)
    assert starter["num_bytes"] > 2**20


def test_models_of_the_hub_cache_are_listed_with_what_is_wrong(hub: Path, model_dir: Path, run: Run) -> None:
    whole = cached(hub, "someone/whole", model_dir)
    (cached(hub, "someone/half", model_dir) / "model.safetensors").unlink()
    (hub / "models--someone--empty").mkdir()
    (hub / "datasets--someone--text").mkdir()
    found = listed(run)
    assert set(found) == {"starter", "someone/whole", "someone/half"}
    assert found["someone/whole"]["path"] == str(whole)
    # Its config says nothing of heads and layers.
    assert (found["someone/whole"]["fits"], found["someone/whole"]["problem"]) == (None, None)
    assert "safetensors" in str(found["someone/half"]["problem"])
    assert "someone/half" in run.out("models")


def test_a_model_that_memory_does_not_hold_is_told(hub: Path, model_dir: Path, run: Run) -> None:
    config = {
        "model_type": "llama",
        "num_hidden_layers": 10_000,
        "hidden_size": 100_000,
        "num_attention_heads": 1000,
        "num_key_value_heads": 1000,
        "max_position_embeddings": 100_000,
        "torch_dtype": "float32",
    }
    (model_dir / "config.json").write_text(json.dumps(config))
    cached(hub, "someone/huge", model_dir)
    huge = listed(run)["someone/huge"]
    assert huge["fits"] is False
    assert huge["token_bytes"] == 2 * 10_000 * 100_000 * 4
    assert "does not fit" in run.out("models", "show", "someone/huge")


def test_a_model_that_is_not_here_exits_4(hub: Path, run: Run) -> None:
    assert "kvchat ask -m nobody/nothing" in run.err("models", "show", "nobody/nothing", code=4)


def test_a_gguf_file_is_shown_by_its_size(hub: Path, tmp_path: Path, run: Run) -> None:
    file = tmp_path / "tiny.gguf"
    file.write_bytes(b"GGUF" + bytes(2**20 - 4))
    assert "1.0 MiB" in (shown := run.out("models", "show", str(file)))
    assert "KV unknown" in shown
    with file.open("r+b") as hole:
        hole.truncate(2**43)
    one = run.json("models", "show", str(file))
    assert (one["path"], one["num_bytes"], one["fits"]) == (str(file), 2**43, None)
    assert one["problem"] == "its weights alone take 8.0 TiB"
