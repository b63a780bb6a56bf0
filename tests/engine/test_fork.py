"""A fork costs nothing until it writes, and then one block of each group."""

import pytest

from kvchat.engine.api.ids import SequenceId
from kvchat.engine.engine import Engine
from tests.engine.conftest import OpenEngine, OpenRecorded, TinyModels
from tests.engine.tiny_models import answer, finish, reference, submit, token_ids

pytestmark = pytest.mark.cpu


def begin(engine: Engine, length: int, num_tokens: int = 8) -> tuple[SequenceId, list[int]]:
    """Answer a prompt and return the live sequence with its text."""
    prompt = token_ids(length)
    handle = submit(engine, prompt, num_tokens)
    return handle.sequence, prompt + finish(engine, handle).token_ids


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
