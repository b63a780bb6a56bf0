"""Greedy answers equal transformers' `generate` in float32, however a conversation was cut, cached or forked.

Logits rows are compared as well, because greedy tokens alone can be right for the wrong reason (trap 34).
"""

from collections.abc import Sequence
from pathlib import Path

import pytest

from kvchat.engine.engine import Engine
from kvchat.engine.results import Handle
from tests.engine.conftest import OpenEngine, OpenRecorded, TinyModels
from tests.engine.tiny_models import KINDS, RecordingRunner, answer, finish, reference, submit, token_ids

pytestmark = pytest.mark.cpu

LENGTHS = (5, 16, 17, 33, 63, 200)
WINDOWS = [("qwen3", 7), ("qwen3", 16), ("gemma3", 23), ("gemma3", 48)]
"""Below a block, one block, neither a block nor a multiple, several blocks."""

all_kinds = pytest.mark.parametrize("kind", KINDS)


def expect(model_dir: Path, prompt: Sequence[int], tokens: Sequence[int]) -> None:
    assert tokens == reference(model_dir).answer(prompt, len(tokens))


def expect_rows(
    model_dir: Path, recorder: RecordingRunner, handle: Handle, prompt: list[int], tokens: list[int]
) -> None:
    """The logits that chose each token equal those of one uncached pass over the whole text."""
    rows = reference(model_dir).logits(prompt + tokens)
    for position in range(len(prompt) - 1, len(prompt) + len(tokens) - 1):
        row = recorder.row(handle.sequence, position)
        bound = 1e-4 * rows[position].abs().max()
        assert (row - rows[position]).abs().max() < bound, f"position {position}"


def expect_answer(
    model_dir: Path, recorder: RecordingRunner, handle: Handle, prompt: list[int], tokens: list[int]
) -> None:
    """The answer is transformers' own, and so are the logits that chose it."""
    expect(model_dir, prompt, tokens)
    expect_rows(model_dir, recorder, handle, prompt, tokens)


@all_kinds
def test_a_ragged_batch_that_arrives_bit_by_bit_mixes_prefill_with_decode_and_stays_exact(
    kind: str, tiny: TinyModels, open_recorded: OpenRecorded
) -> None:
    """Trap 34: prompts are attended, not only plausibly continued."""
    model_dir = tiny(kind)
    engine, recorder = open_recorded(model_dir, max_batch_tokens=50)
    prompts = [token_ids(length, seed=1) for length in LENGTHS]
    handles = [_submit_and_step(engine, prompt) for prompt in prompts]
    results = [finish(engine, handle) for handle in handles]
    for prompt, handle, result in zip(prompts, handles, results, strict=True):
        expect_answer(model_dir, recorder, handle, prompt, result.token_ids)
    sizes = [[len(chunk.token_ids) for chunk in batch.chunks] for batch in recorder.batches]
    assert any(1 in batch and max(batch) > 1 for batch in sizes)
    assert any(len(batch) == len(prompts) for batch in sizes)
    assert max(map(sum, sizes)) <= 50


def _submit_and_step(engine: Engine, prompt: list[int]) -> Handle:
    handle = submit(engine, prompt, 24)
    engine.step()
    engine.check_integrity()
    return handle


@all_kinds
def test_a_prefix_hit_that_ends_inside_a_block_is_exact(
    kind: str, tiny: TinyModels, open_recorded: OpenRecorded
) -> None:
    model_dir = tiny(kind)
    engine, recorder = open_recorded(model_dir)
    known = token_ids(90)
    answer(engine, known, 8)
    prompt = known[:71] + token_ids(30, seed=3)
    handle = submit(engine, prompt, 24)
    result = finish(engine, handle)
    assert (result.usage.cached_tokens, result.loaded.device) == (71, 71)
    expect_answer(model_dir, recorder, handle, prompt, result.token_ids)


@pytest.mark.covering(1)
@pytest.mark.parametrize(("kind", "window"), WINDOWS)
@pytest.mark.parametrize("block_size", [16, 5])
def test_contexts_far_beyond_the_window_are_exact(
    kind: str, window: int, block_size: int, tiny: TinyModels, open_recorded: OpenRecorded
) -> None:
    """Traps 15 and 16: prompt and answer cross the window, in one piece and in chunks."""
    model_dir = tiny(kind, sliding_window=window)
    engine, recorder = open_recorded(model_dir, block_size=block_size, max_batch_tokens=60)
    prompts = [token_ids(window - 2, seed=6), token_ids(window + 1, seed=6), token_ids(130, seed=6)]
    handles = [submit(engine, prompt, 40) for prompt in prompts]
    for prompt, handle in zip(prompts, handles, strict=True):
        result = finish(engine, handle)
        expect_answer(model_dir, recorder, handle, prompt, result.token_ids)
    _expect_windows_held(engine, window, block_size)


def _expect_windows_held(engine: Engine, window: int, block_size: int) -> None:
    snapshot = engine.snapshot()
    for sequence in snapshot.sequences:
        for group, held in zip(snapshot.groups, sequence.blocks_per_group, strict=True):
            if group.window is not None:
                assert held <= -(-window // block_size) + 1
            else:
                assert held == -(-sequence.num_tokens // block_size)


@pytest.mark.parametrize(("kind", "window"), WINDOWS)
def test_a_hit_whose_window_is_gone_in_part_is_exact(
    kind: str, window: int, tiny: TinyModels, open_engine: OpenEngine
) -> None:
    """Trap 17: continue behind a prefix of an answer, where only the end of the window was kept."""
    model_dir = tiny(kind, sliding_window=window)
    engine = open_engine(model_dir)
    prompt = token_ids(100, seed=7)
    text = prompt + answer(engine, prompt, 50).token_ids
    for length in (149, 128, 101, 90, 33):
        turn = text[:length] + token_ids(7, seed=length)
        result = answer(engine, turn, 12)
        expect(model_dir, turn, result.token_ids)


@pytest.mark.parametrize("kind", ["llama", "qwen3"])
def test_unused_slots_full_of_nan_never_reach_an_answer(
    kind: str, tiny: TinyModels, open_recorded: OpenRecorded
) -> None:
    model_dir = tiny(kind)
    texts = []
    for poison in (0.0, float("nan")):
        engine, recorder = open_recorded(model_dir, max_batch_tokens=40)
        for layer in recorder.device_pool.layers.values():
            layer.keys.fill_(poison)
            layer.values.fill_(poison)
        prompt = token_ids(90)
        first = answer(engine, prompt, 20).token_ids
        second = answer(engine, prompt[:50] + token_ids(30, seed=3), 20).token_ids
        handles = [submit(engine, token_ids(length, seed=40), 12) for length in (3, 16, 50)]
        texts.append([first, second] + [finish(engine, handle).token_ids for handle in handles])
    assert texts[0] == texts[1]
