"""A stored block that is damaged, missing or foreign is never used: its tokens are computed again."""

import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import pytest

from kvchat.engine.api.ids import BlockKey, block_key, chain_keys, root_key
from kvchat.engine.memory.disk.block_file import block_path
from tests.damage import flip
from tests.engine.conftest import OpenEngine, TinyModels
from tests.engine.tiny_models import answer, reference, token_ids
from tests.engine.tiny_models import open_engine as open_unmanaged

pytestmark = pytest.mark.cpu

PROMPT_LEN, ANSWER_LEN, BLOCK_SIZE, WINDOW = 90, 12, 16, 23
NUM_BLOCKS = (PROMPT_LEN + ANSWER_LEN - 1) // BLOCK_SIZE
SLIDING, FULL = 0, 1
"""Group ids: the first layer of the model slides."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """A conversation on disk, the prompt that goes on with it, and the answer it must get."""

    model_dir: Path
    cache_dir: Path
    fingerprint: bytes
    text: list[int]
    prompt: list[int]
    wanted: list[int]

    def path(self, number: int, group: int) -> Path:
        """Return the file of a full block, or of the tail for the number behind the last one."""
        root = root_key(self.fingerprint)
        keys = chain_keys(root, self.text, BLOCK_SIZE)
        key: BlockKey = (
            keys[number]
            if number < NUM_BLOCKS
            else block_key(keys[number - 1], self.text[number * BLOCK_SIZE : -1])
        )
        path = block_path(self.cache_dir / "blocks", self.fingerprint, key, group)
        assert path.is_file()
        return path

    def num_quarantined(self) -> int:
        aside = self.cache_dir / "quarantine"
        return len(list(aside.iterdir())) if aside.is_dir() else 0


@pytest.fixture(scope="module")
def original(tiny: TinyModels, tmp_path_factory: pytest.TempPathFactory) -> Stored:
    model_dir = tiny("qwen3", sliding_window=WINDOW)
    cache_dir = tmp_path_factory.mktemp("stored")
    engine = open_unmanaged(model_dir, cache_dir=cache_dir)
    begun = token_ids(PROMPT_LEN)
    text = begun + answer(engine, begun, ANSWER_LEN).token_ids
    engine.close()
    prompt = text + token_ids(9, seed=60)
    return Stored(
        model_dir=model_dir,
        cache_dir=cache_dir,
        fingerprint=bytes.fromhex(engine.info.fingerprint),
        text=text,
        prompt=prompt,
        wanted=reference(model_dir).answer(prompt, 24),
    )


@pytest.fixture
def stored(original: Stored, tmp_path: Path) -> Stored:
    """The conversation in a directory of its own, to be damaged."""
    shutil.copytree(original.cache_dir, tmp_path / "cache")
    return replace(original, cache_dir=tmp_path / "cache")


def cut_short(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-64])


def take_the_neighbours_bytes(path: Path) -> None:
    other = next(file for file in path.parent.parent.rglob("*.0.safetensors") if file != path)
    shutil.copyfile(other, path)


@pytest.mark.parametrize(
    ("damage", "number", "group", "num_left"),
    [
        (flip, 0, FULL, 0),
        (flip, 3, FULL, 48),
        (flip, 5, SLIDING, 80),
        (flip, NUM_BLOCKS, FULL, 96),
        (flip, NUM_BLOCKS, SLIDING, 96),
        (partial(flip, at=60), 3, FULL, 48),
        (cut_short, 3, FULL, 48),
        (cut_short, NUM_BLOCKS, FULL, 96),
        (take_the_neighbours_bytes, 3, FULL, 48),
    ],
)
def test_a_damaged_block_is_set_aside_and_computed_again(
    damage: Callable[[Path], None],
    number: int,
    group: int,
    num_left: int,
    stored: Stored,
    open_engine: OpenEngine,
) -> None:
    """Trap 24: right length, wrong length, wrong bytes, another block's bytes."""
    damage(stored.path(number, group))
    result = answer(open_engine(stored.model_dir, cache_dir=stored.cache_dir), stored.prompt)
    assert result.token_ids == stored.wanted
    assert result.usage.cached_tokens == num_left
    assert stored.num_quarantined() == 1


@pytest.mark.parametrize(
    ("number", "group", "num_left"), [(3, FULL, 48), (NUM_BLOCKS, FULL, 96), (NUM_BLOCKS, SLIDING, 96)]
)
def test_a_block_that_vanishes_between_look_up_and_load_is_computed_again(
    number: int, group: int, num_left: int, stored: Stored, open_engine: OpenEngine
) -> None:
    """Trap 22: the store says yes, the file is gone. A directory in its place cannot be read either."""
    engine = open_engine(stored.model_dir, cache_dir=stored.cache_dir)
    path = stored.path(number, group)
    path.unlink()
    path.mkdir()
    result = answer(engine, stored.prompt)
    assert result.token_ids == stored.wanted
    assert result.usage.cached_tokens == num_left


def test_sliding_blocks_before_the_window_are_not_missed(stored: Stored, open_engine: OpenEngine) -> None:
    for number in range(3):
        stored.path(number, SLIDING).unlink()
    result = answer(open_engine(stored.model_dir, cache_dir=stored.cache_dir), stored.prompt)
    assert result.usage.cached_tokens == len(stored.text) - 1
    assert result.token_ids == stored.wanted


def test_blocks_damaged_together_are_all_stored_again_by_one_answer(
    stored: Stored, open_engine: OpenEngine
) -> None:
    """A torn stretch of the disk must not cost one long prefill per block in it."""
    for number in range(NUM_BLOCKS):
        flip(stored.path(number, FULL))
    first = open_engine(stored.model_dir, cache_dir=stored.cache_dir)
    assert answer(first, stored.prompt).usage.cached_tokens == 0
    first.close()
    again = answer(open_engine(stored.model_dir, cache_dir=stored.cache_dir), stored.prompt)
    assert again.usage.cached_tokens >= NUM_BLOCKS * 16
    assert again.token_ids == stored.wanted


def test_blocks_moved_under_another_fingerprint_are_set_aside(
    stored: Stored, open_engine: OpenEngine, tiny: TinyModels
) -> None:
    """Traps 5 and 6: the descriptor is part of what is verified."""
    other_dir = tiny("qwen3", sliding_window=WINDOW, rms_norm_eps=1e-5)
    engine = open_unmanaged(other_dir)
    fingerprint = engine.info.fingerprint
    engine.close()
    blocks = stored.cache_dir / "blocks"
    (blocks / stored.fingerprint.hex()).rename(blocks / fingerprint)
    (stored.cache_dir / "index.db").unlink()
    result = answer(open_engine(other_dir, cache_dir=stored.cache_dir), stored.prompt)
    assert result.usage.cached_tokens == 0
    assert result.token_ids == reference(other_dir).answer(stored.prompt, 24)
    assert stored.num_quarantined() > 0
