"""Attention in fixed chunks: exact across their edges, and held only as far back as the chunk reaches."""

from pathlib import Path

import pytest

from benchmarks.models.configs import Case
from benchmarks.models.survey import save_tiny
from kvchat.engine.formats.pool_sizing import window_blocks
from tests.engine.conftest import OpenEngine
from tests.engine.tiny_models import answer, reference, submit, token_ids

pytestmark = pytest.mark.cpu

SIZES = [(23, 16), (16, 16), (48, 5)]
"""Chunk and block: neither divides the other, the same, several blocks and a part."""


@pytest.fixture(params=SIZES, ids=str)
def sizes(request: pytest.FixtureRequest) -> tuple[int, int]:
    return request.param


@pytest.fixture
def model_dir(sizes: tuple[int, int], tmp_path: Path) -> Path:
    save_tiny(Case("llama4_text", changes={"attention_chunk_size": sizes[0]}), tmp_path / "model")
    return tmp_path / "model"


def test_hits_before_at_and_behind_the_edges_of_chunks_are_exact(
    sizes: tuple[int, int], model_dir: Path, open_engine: OpenEngine
) -> None:
    """Traps 16 and 17: the first query of a chunk sees nothing before it, the last one all of the chunk."""
    chunk, block = sizes
    engine = open_engine(model_dir, block_size=block, max_batch_tokens=30)
    prompt = token_ids(100)
    text = prompt + answer(engine, prompt, 12).token_ids
    for length in (2 * chunk - 1, 2 * chunk, 2 * chunk + 1, 3 * block, 100):
        turn = text[:length] + token_ids(5, seed=length)
        result = answer(engine, turn, 6)
        assert result.usage.cached_tokens >= length - block
        assert result.token_ids == reference(model_dir).answer(turn, 6)


def test_one_token_back_computes_one_token(model_dir: Path, open_engine: OpenEngine) -> None:
    """Trap 18: undo and edit at the end start from what is there."""
    engine = open_engine(model_dir, block_size=16)
    prompt = token_ids(90)
    answer(engine, prompt, 4)
    for length in (90, 89):
        result = answer(engine, prompt[:length], 4)
        assert result.usage.computed_tokens == 1
        assert result.token_ids == reference(model_dir).answer(prompt[:length], 4)


def test_a_sequence_holds_no_more_blocks_than_its_chunk_touches(
    sizes: tuple[int, int], model_dir: Path, open_engine: OpenEngine
) -> None:
    chunk, block = sizes
    engine = open_engine(model_dir, block_size=block, max_batch_tokens=30)
    handle = submit(engine, token_ids(60), 50)
    number = next(number for number, group in enumerate(engine.snapshot().groups) if group.kind == "chunked")
    for _ in handle:
        engine.check_integrity()
        for sequence in engine.snapshot().sequences:
            assert sequence.blocks_per_group[number] <= window_blocks(chunk, block)
