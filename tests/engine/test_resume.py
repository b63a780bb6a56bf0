"""A conversation that was closed goes on where it stopped: nothing that was computed is computed again."""

import shutil
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from time import sleep

import pytest

from kvchat.engine.api.config import EngineConfig
from kvchat.engine.api.events import Loaded
from kvchat.engine.api.ids import BlockKey, GroupId
from kvchat.engine.api.inspection import InspectionRequest
from kvchat.engine.engine import Engine
from kvchat.engine.memory.disk.io import Buffer
from kvchat.engine.memory.disk.store import BlockHeader, DiskStore
from kvchat.engine.memory.disk.write_queue import BlockWriteQueue
from kvchat.engine.memory.saver import Saver
from kvchat.engine.startup.assembly import build_parts
from tests.engine.conftest import OpenEngine, TinyModels
from tests.engine.tiny_models import answer, finish, reference, submit, token_ids
from tests.engine.tiny_models import open_engine as open_unmanaged
from tests.patience import PATIENCE_S, wait_until

pytestmark = pytest.mark.cpu

GLUE, MESSAGE = token_ids(3, seed=60), token_ids(11, seed=61)
NUM_NEW = 1 + len(GLUE) + len(MESSAGE)
"""The last sampled token was never fed; the template's glue and the message are new."""


def say(model_dir: Path, cache_dir: Path, prompt: list[int], num_tokens: int = 12) -> list[int]:
    """Answer in an engine of its own and close it; return the whole text."""
    engine = open_unmanaged(model_dir, cache_dir=cache_dir)
    text = prompt + answer(engine, prompt, num_tokens).token_ids
    engine.close()
    return text


@pytest.mark.parametrize(("kind", "length"), [("gemma3", 150), ("qwen3", 30), ("qwen3", 53)])
def test_a_reopened_conversation_computes_only_what_was_never_fed(
    kind: str, length: int, tiny: TinyModels, open_engine: OpenEngine, tmp_path: Path
) -> None:
    """Traps 17, 19 and 26: below and beyond the window, also where a turn ends with a block."""
    model_dir = tiny(kind)
    text = say(model_dir, tmp_path, token_ids(length))
    prompt = text + GLUE + MESSAGE
    result = answer(open_engine(model_dir, cache_dir=tmp_path), prompt)
    assert result.usage.computed_tokens == NUM_NEW
    assert result.loaded == Loaded(disk=len(text) - 1)
    assert result.token_ids == reference(model_dir).answer(prompt, 24)


def test_a_turn_behind_1024_tokens_writes_its_own_blocks_and_the_tail_and_touches_no_other(
    tiny: TinyModels, tmp_path: Path
) -> None:
    model_dir = tiny("qwen3", max_position_embeddings=2048)

    def talk(prompt: list[int]) -> tuple[list[int], dict[Path, int]]:
        engine = open_unmanaged(model_dir, cache_dir=tmp_path, block_size=64, max_batch_tokens=512)
        result = answer(engine, prompt, 12)
        num_groups = len(engine.snapshot().groups)
        engine.close()
        files = {path: path.stat().st_ino for path in (tmp_path / "blocks").rglob("*.safetensors")}
        num_stored = len(prompt) + 11  # the last sampled token was never fed
        assert len(files) <= num_groups * (num_stored // 64 + 1)
        return prompt + result.token_ids, files

    text, before = talk(token_ids(1024 - 20))
    longer, after = talk(text + token_ids(100, seed=70))
    assert len(before) >= 1024 // 64
    gone, new = before.keys() - after.keys(), after.keys() - before.keys()
    assert all(before[path] == after[path] for path in before.keys() & after.keys())
    num_groups = len({path.name.split(".")[1] for path in after})
    assert len(gone) == num_groups  # the tail that the new blocks continue
    assert len(new) == num_groups * (len(longer) // 64 - len(text) // 64 + 1)


def test_an_earlier_turn_is_answered_again_from_its_own_window(
    tiny: TinyModels, open_engine: OpenEngine, tmp_path: Path
) -> None:
    """Traps 18 and 19: retry and edit at a turn's start find the sliding blocks of that time on disk."""
    model_dir = tiny("qwen3", sliding_window=23)
    first = say(model_dir, tmp_path, token_ids(90))
    second = say(model_dir, tmp_path, first + GLUE + MESSAGE, 80)
    assert len(second) > len(first) + 3 * 23
    edited = first + GLUE + token_ids(11, seed=62)
    result = answer(open_engine(model_dir, cache_dir=tmp_path), edited)
    assert result.usage.cached_tokens == len(first) + len(GLUE)
    assert result.token_ids == reference(model_dir).answer(edited, 24)


def test_what_a_killed_engine_had_not_saved_is_a_tail_at_most(
    tiny: TinyModels, open_engine: OpenEngine, tmp_path: Path
) -> None:
    """A copy of the directory stands for the disk at the moment of the kill."""
    model_dir = tiny("qwen3")
    engine = open_engine(model_dir, cache_dir=tmp_path / "live")
    prompt = token_ids(100)
    submit(engine, prompt, 50)
    for _ in range(30):
        engine.step()
    text = prompt + reference(model_dir).answer(prompt, 30)
    _wait_until_saved(engine, text[: (len(text) - 1) // 16 * 16])
    shutil.copytree(tmp_path / "live", tmp_path / "killed")
    result = answer(open_engine(model_dir, cache_dir=tmp_path / "killed"), text, 20)
    assert result.loaded.disk >= (len(text) - 1) // 16 * 16
    assert result.token_ids == reference(model_dir).answer(text, 20)


def _wait_until_saved(engine: Engine, token_ids: list[int]) -> None:
    """Until each of these blocks is there: a count would take parts of a tail for blocks."""

    def is_saved() -> bool:
        blocks = engine.inspect(InspectionRequest(token_ids=tuple(token_ids)))
        return all(place.is_stored for block in blocks for place in block.places)

    wait_until(is_saved)


def test_what_is_on_the_device_already_is_not_loaded_again(
    tiny: TinyModels, open_engine: OpenEngine, tmp_path: Path
) -> None:
    model_dir = tiny("qwen3")
    text = say(model_dir, tmp_path, token_ids(90))
    engine = open_engine(model_dir, cache_dir=tmp_path)
    cold = answer(engine, text + GLUE, 8)
    warm = answer(engine, text + GLUE + MESSAGE, 8)
    assert cold.loaded == Loaded(disk=len(text) - 1)
    assert warm.loaded.disk == 0
    assert warm.loaded.device == len(text) + len(GLUE)


class SlowSink(DiskStore):
    """A disk that takes its time, so that the writer's queue is full whenever someone looks."""

    def __init__(self, store: DiskStore) -> None:
        self.shortage = self.left_out = None
        self._store = store

    def write(self, blocks: Iterable[tuple[BlockHeader, Buffer]], *, is_wanted: bool = False) -> int:
        sleep(0.02)
        return self._store.write(blocks)

    def remove(self, key: BlockKey, group: GroupId) -> None:
        self._store.remove(key, group)


def test_closing_saves_everything_however_little_the_writer_takes_at_a_time(
    tiny: TinyModels, open_engine: OpenEngine, tmp_path: Path
) -> None:
    """The writer's queue has room for one block, so that blocks and the tail have to wait for each other."""
    model_dir = tiny("llama")
    config = EngineConfig(device="cpu", block_size=16, cache_dir=tmp_path)
    parts = build_parts("tiny", model_dir, config)
    assert parts.saver is not None
    assert parts.store is not None
    parts.saver.close(timeout_s=PATIENCE_S)
    writer = BlockWriteQueue(SlowSink(parts.store), max_bytes=1)
    saver = Saver(parts.pool, parts.store, writer, parts.manager.is_resident)
    engine = Engine(replace(parts, saver=saver))
    handle = submit(engine, token_ids(150), 12)
    text = token_ids(150) + finish(engine, handle).token_ids
    engine.close()
    result = answer(open_engine(model_dir, cache_dir=tmp_path), text + MESSAGE, 4)
    assert result.loaded == Loaded(disk=len(text) - 1)
