"""A fork costs nothing until it writes, and then one block of each group."""

import pytest

from kvchat.engine.api.ids import SequenceId
from kvchat.engine.api.snapshot import CacheSnapshot
from kvchat.engine.engine import Engine
from tests.engine.conftest import OpenEngine, OpenRecorded, TinyModels
from tests.engine.tiny_models import answer, finish, reference, submit, token_ids

pytestmark = pytest.mark.cpu


def used(snapshot: CacheSnapshot) -> list[int]:
    return [group.used_blocks for group in snapshot.groups]


def begin(engine: Engine, length: int, num_tokens: int = 8) -> tuple[SequenceId, list[int]]:
    """Answer a prompt and return the live sequence with its text."""
    prompt = token_ids(length)
    handle = submit(engine, prompt, num_tokens)
    return handle.sequence, prompt + finish(engine, handle).token_ids


def test_ten_forks_of_two_thousand_tokens_add_no_block_until_they_write_then_one_tail_each(
    tiny: TinyModels, open_engine: OpenEngine
) -> None:
    model_dir = tiny("qwen3", max_position_embeddings=4096, sliding_window=200)
    engine = open_engine(model_dir, block_size=64)
    sequence, text = begin(engine, 2000)
    before = engine.snapshot()
    children = [engine.fork(sequence) for _ in range(10)]
    engine.check_integrity()
    forked = engine.snapshot()
    assert used(forked) == used(before)
    assert [group.shared_blocks for group in forked.groups] == used(forked)
    assert len(forked.sequences) == 11
    assert all(usage.own_bytes == 0 for usage in forked.sequences)

    turns = {child: text + token_ids(5, seed=80 + number) for number, child in enumerate(children)}
    handles = {child: submit(engine, turn, 3, child) for child, turn in turns.items()}
    results = {child: finish(engine, handle) for child, handle in handles.items()}
    assert [after - old for after, old in zip(used(engine.snapshot()), used(before), strict=True)] == [10, 10]
    for child in children:
        assert results[child].usage.cached_tokens == len(text) - 1
    for child in (children[0], children[-1]):
        assert results[child].token_ids == reference(model_dir).answer(turns[child], 3)


def test_a_fork_of_a_running_sequence_continues_what_was_computed_so_far(
    tiny: TinyModels, open_engine: OpenEngine
) -> None:
    model_dir = tiny("qwen3")
    engine = open_engine(model_dir)
    prompt = token_ids(50)
    wanted = reference(model_dir).answer(prompt, 40)
    handle = submit(engine, prompt, 40)
    for _ in range(10):
        engine.step()
    child = engine.fork(handle.sequence)
    turn = prompt + wanted[:10] + token_ids(6, seed=83)
    asked = submit(engine, turn, 10, child)
    assert finish(engine, handle).token_ids == wanted
    result = finish(engine, asked)
    assert result.usage.cached_tokens == 59
    assert result.token_ids == reference(model_dir).answer(turn, 10)


def test_forks_of_forks_released_in_any_order_leave_nothing_held(
    tiny: TinyModels, open_engine: OpenEngine
) -> None:
    engine = open_engine(tiny("qwen3"))
    sequence, _ = begin(engine, 70)
    sequences = [sequence]
    for _ in range(4):
        sequences.append(engine.fork(sequences[-1]))
    for leaving in (sequences[2], sequences[0], sequences[4], sequences[1], sequences[3]):
        engine.release(leaving)
        engine.check_integrity()
    snapshot = engine.snapshot()
    assert used(snapshot) == [0, 0]
    assert snapshot.sequences == ()


def test_a_retry_without_a_sequence_finds_the_tail_of_a_live_one(
    tiny: TinyModels, open_recorded: OpenRecorded
) -> None:
    """The first answer's sequence stays as it is; the retry copies what it shares with its tail."""
    model_dir = tiny("gpt2")
    engine, recorder = open_recorded(model_dir)
    sequence, text = begin(engine, 60)
    retry = text[:57] + token_ids(6, seed=84)
    result = answer(engine, retry, 12)
    assert result.usage.cached_tokens == 57
    assert result.token_ids == reference(model_dir).answer(retry, 12)
    again = text + token_ids(6, seed=85)
    assert answer(engine, again, 12, sequence).token_ids == reference(model_dir).answer(again, 12)
    assert max(len(chunk.token_ids) for batch in recorder.batches[8:] for chunk in batch.chunks) == 7
