"""A disk that refuses is told and costs time; what is new is saved, without a disk tier nothing is."""

import os
from pathlib import Path

import pytest

from kvchat.engine.api.snapshot import Tier
from kvchat.engine.models.checkpoints.prepared import PREPARED_DIR
from tests.engine.conftest import OpenEngine, TinyModels
from tests.engine.tiny_models import answer, reference, token_ids
from tests.patience import wait_until

pytestmark = pytest.mark.cpu


def test_a_cache_directory_that_cannot_be_used_costs_the_disk_tier_and_no_answer(
    tiny: TinyModels, tmp_path: Path, open_engine: OpenEngine
) -> None:
    """Read-only from the start, or a file in its place: the chat goes on and says why it saves nothing."""
    (tmp_path / "taken").write_text("a file")
    engine = open_engine(tiny("llama"), cache_dir=tmp_path / "taken" / "cache")
    prompt = token_ids(40)
    assert answer(engine, prompt, 8).token_ids == reference(tiny("llama")).answer(prompt, 8)
    problem = engine.snapshot().problem
    assert problem is not None
    assert "taken" in problem
    assert "another cache directory" in problem
    assert not engine.info.disk_enabled

    engine.update_weights(tiny("llama"))
    assert engine.snapshot().problem == problem
    (tmp_path / "taken").unlink()
    assert engine.update_weights(tiny("llama")).disk_enabled
    assert engine.snapshot().problem is None


def test_a_disk_that_begins_to_refuse_is_told_until_it_takes_blocks_again(
    tiny: TinyModels, tmp_path: Path, open_engine: OpenEngine
) -> None:
    """Trap 25."""
    engine = open_engine(tiny("llama"), cache_dir=tmp_path)
    blocked = tmp_path / "blocks" / engine.info.fingerprint
    blocked.write_text("a file where the blocks should be")
    prompt = token_ids(40)
    assert answer(engine, prompt, 8).token_ids == reference(tiny("llama")).answer(prompt, 8)
    _wait_until(engine, is_refused=True)
    assert str(tmp_path) in str(engine.snapshot().problem)
    blocked.unlink()
    answer(engine, token_ids(40, seed=1), 8)
    _wait_until(engine, is_refused=False)
    assert engine.snapshot().tier(Tier.DISK).num_blocks > 0


def test_weights_that_leave_blocks_no_room_are_told(
    tiny: TinyModels, tmp_path: Path, open_engine: OpenEngine
) -> None:
    """The default limit beside a large model: nothing would ever be saved, and nobody knew."""
    prepared = tmp_path / PREPARED_DIR / "weights"
    prepared.mkdir(parents=True)
    (prepared / "model.safetensors").write_bytes(bytes(2 << 20))
    engine = open_engine(tiny("llama"), cache_dir=tmp_path, disk_bytes=1 << 20)
    prompt = token_ids(40)
    assert answer(engine, prompt, 8).token_ids == reference(tiny("llama")).answer(prompt, 8)
    _wait_until(engine, is_refused=True)
    problem = str(engine.snapshot().problem)
    assert "prepared weights hold" in problem
    assert "give more with --kv-disk-bytes" in problem


def test_without_a_disk_tier_no_file_is_touched(
    tiny: TinyModels, tmp_path: Path, open_engine: OpenEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A conversation that is to be forgotten leaves its KV in memory alone."""
    model_dir = tiny("llama")
    for name in ("HOME", "TMPDIR", "XDG_CACHE_HOME"):
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.chdir(tmp_path)
    before = sorted(os.walk(model_dir))
    engine = open_engine(model_dir, cache_dir=None)
    answer(engine, token_ids(80), 8)
    engine.close()
    assert list(tmp_path.rglob("*")) == []
    assert sorted(os.walk(model_dir)) == before
    assert engine.snapshot().problem is None


def _wait_until(engine, *, is_refused: bool) -> None:
    def is_told() -> bool:
        engine.tick()
        return (engine.snapshot().problem is not None) == is_refused

    wait_until(is_told)
