"""What the engine takes, refuses and ends, and that one request never harms another."""

from pathlib import Path

import pytest

from kvchat.engine import Engine, EngineConfig, Request, SamplingParams
from kvchat.engine.api.events import FinishReason, PrefillProgress, RequestFinished, TokenEmitted
from kvchat.engine.api.ids import SequenceId
from kvchat.errors import ContextOverflow, InvalidRequest, PoolExhausted
from tests.engine.conftest import OpenEngine, TinyModels
from tests.engine.tiny_models import answer, finish, reference, submit, token_ids

pytestmark = pytest.mark.cpu


@pytest.fixture
def engine(model_dir: Path, open_engine: OpenEngine) -> Engine:
    return open_engine(model_dir)


def ask(
    engine: Engine, prompt: list[int], sampling: SamplingParams, sequence: SequenceId | None = None
) -> list[int]:
    handle = engine.submit(Request(token_ids=tuple(prompt), sampling=sampling, sequence=sequence))
    return finish(engine, handle).token_ids


# What is refused, and says why


def test_a_prompt_without_room_for_an_answer_is_refused(model_dir: Path, open_engine: OpenEngine) -> None:
    engine = open_engine(model_dir, max_context=40)
    for length in (40, 41, 400):
        with pytest.raises(ContextOverflow, match=f"{length} tokens"):
            submit(engine, token_ids(length), 3)
    result = answer(engine, token_ids(39), 3)
    assert (len(result.token_ids), result.finish_reason) == (1, FinishReason.LENGTH)


def test_a_prompt_that_never_fits_into_the_pool_is_refused_before_it_waits(
    model_dir: Path, open_engine: OpenEngine
) -> None:
    engine = open_engine(model_dir, device_bytes=4 * 16 * 1024)
    assert engine.snapshot().groups[0].total_blocks == 4
    with pytest.raises(PoolExhausted, match="--kv-device-bytes"):
        submit(engine, token_ids(64), 3)
    assert not engine.has_work
    result = answer(engine, token_ids(63), 1)
    assert result.token_ids == reference(model_dir).answer(token_ids(63), 1)


def test_an_answer_that_outgrows_the_pool_ends_with_a_reason_and_the_next_one_works(
    model_dir: Path, open_engine: OpenEngine
) -> None:
    engine = open_engine(model_dir, device_bytes=4 * 16 * 1024)
    result = answer(engine, token_ids(50), 100)
    assert result.finish_reason is FinishReason.ERROR
    assert result.error is not None
    assert "--kv-device-bytes" in result.error
    wanted = reference(model_dir).answer(token_ids(50), 100)
    assert result.token_ids == wanted[: len(result.token_ids)]
    assert len(result.token_ids) == 64 - 50 + 1
    assert answer(engine, token_ids(30), 5).finish_reason is FinishReason.LENGTH


def test_a_cache_too_small_for_the_model_is_refused_with_the_number_it_needs(
    model_dir: Path, open_engine: OpenEngine
) -> None:
    with pytest.raises(PoolExhausted, match=r"needs at least \d+ bytes"):
        open_engine(model_dir, device_bytes=1000)


def test_a_sequence_that_is_unknown_busy_or_different_is_refused(engine: Engine) -> None:
    handle = submit(engine, token_ids(20), 10)
    engine.step()
    with pytest.raises(InvalidRequest, match="no live sequence"):
        submit(engine, token_ids(30), 3, SequenceId(99))
    with pytest.raises(InvalidRequest, match="still answering"):
        submit(engine, token_ids(20), 3, handle.sequence)
    text = token_ids(20) + finish(engine, handle).token_ids
    with pytest.raises(InvalidRequest, match="does not begin"):
        submit(engine, [*text[:10], 7, 7, *text[12:]], 3, handle.sequence)
    with pytest.raises(InvalidRequest, match="does not begin"):
        submit(engine, text[:10], 3, handle.sequence)
    assert answer(engine, [*text, 8], 3, handle.sequence).usage.cached_tokens == len(text) - 1


# How an answer ends


def test_any_of_the_models_end_ids_ends_the_answer_and_is_its_last_token(
    tiny: TinyModels, open_engine: OpenEngine
) -> None:
    """The generation config lists several; each counts, unless the request says otherwise."""
    prompt = token_ids(17)
    wanted = reference(tiny("llama")).answer(prompt, 30)
    ends = [wanted[12], wanted[5]]
    engine = open_engine(tiny("llama", eos_token_id=ends))
    assert set(engine.info.eos_token_ids) == set(ends)
    result = answer(engine, prompt, 30)
    assert result.token_ids == wanted[:6]
    assert result.finish_reason is FinishReason.STOP
    assert ask(engine, prompt, SamplingParams(max_tokens=30, ignore_eos=True)) == wanted


# Cancel and release


@pytest.mark.parametrize("num_steps", [0, 1, 3, 7, 12])
def test_a_cancelled_request_ends_at_the_next_step_and_leaves_its_neighbours_alone(
    num_steps: int, model_dir: Path, open_engine: OpenEngine
) -> None:
    """Waiting, in its prompt, and in its answer."""
    engine = open_engine(model_dir, max_batch_tokens=16)
    doomed, other = submit(engine, token_ids(70), 50), submit(engine, token_ids(40, seed=1), 20)
    for _ in range(num_steps):
        engine.step()
    doomed.cancel()
    engine.step()
    assert doomed.result is not None
    assert doomed.result.reason is FinishReason.CANCELLED
    assert doomed.result.usage.computed_tokens == min(16 * num_steps, 70)
    assert finish(engine, other).token_ids == reference(model_dir).answer(token_ids(40, seed=1), 20)
    assert not engine.has_work
    doomed.cancel()
    assert engine.step() == ()


def test_releasing_a_sequence_that_answers_ends_its_request(engine: Engine) -> None:
    handle = submit(engine, token_ids(40), 50)
    for _ in range(5):
        engine.step()
    engine.release(handle.sequence)
    engine.check_integrity()
    assert finish(engine, handle).finish_reason is FinishReason.CANCELLED
    assert engine.snapshot().sequences == ()


# Events and counts


def test_events_come_in_order_and_progress_reaches_the_whole_prompt(
    model_dir: Path, open_engine: OpenEngine
) -> None:
    engine = open_engine(model_dir, max_batch_tokens=16)
    answer(engine, token_ids(20), 1)
    handle = submit(engine, token_ids(20) + token_ids(50, seed=1), 3)
    events = list(handle)
    kinds = [type(event) for event in events]
    assert kinds == sorted(kinds, key=[PrefillProgress, TokenEmitted, RequestFinished].index)
    assert kinds.count(TokenEmitted) == 3
    progress = [event for event in events if isinstance(event, PrefillProgress)]
    done = [event.cached_tokens + event.computed_tokens for event in progress]
    assert done == [20, 36, 52, 68, 70]
    assert all(event.prompt_tokens == 70 and event.loaded.device == 20 for event in progress)
    assert {event.request_id for event in events} == {handle.request_id}


def test_a_request_has_waited_until_something_of_it_is_computed(
    model_dir: Path, open_engine: OpenEngine
) -> None:
    engine = open_engine(model_dir, max_batch_tokens=16)
    handles = [submit(engine, token_ids(60, seed=seed), 2) for seed in range(3)]
    engine.step()
    handles[2].cancel()
    first, second, cancelled = [list(handle)[-1] for handle in handles]
    assert isinstance(first, RequestFinished)
    assert isinstance(second, RequestFinished)
    assert isinstance(cancelled, RequestFinished)
    assert first.timings.ttft_s is not None
    assert second.timings.ttft_s is not None
    assert 0 < first.timings.queued_s < first.timings.ttft_s
    assert first.timings.queued_s < second.timings.queued_s < second.timings.ttft_s
    assert cancelled.timings.queued_s == cancelled.timings.total_s


def test_generate_answers_all_prompts_and_keeps_only_their_blocks(engine: Engine, model_dir: Path) -> None:
    prompts = [token_ids(length, seed=2) for length in (3, 16, 50)]
    results = engine.generate(prompts, SamplingParams(max_tokens=8))
    assert [result.token_ids for result in results] == [
        reference(model_dir).answer(prompt, 8) for prompt in prompts
    ]
    snapshot = engine.snapshot()
    assert snapshot.sequences == ()
    assert snapshot.groups[0].cached_blocks > 0


def test_a_session_that_comes_on_screen_overtakes_the_others(
    model_dir: Path, open_engine: OpenEngine
) -> None:
    engine = open_engine(model_dir, max_batch_tokens=16)
    sampling = SamplingParams(max_tokens=2)
    prompts = [tuple(token_ids(60, seed=seed)) for seed in range(2)]
    before, behind = [
        engine.submit(Request(token_ids=prompt, priority=number, sampling=sampling))
        for number, prompt in enumerate(prompts)
    ]
    engine.step()
    engine.prioritise(before.request_id, 2)
    finish(engine, behind)
    assert before.result is None
    assert finish(engine, before).finish_reason is FinishReason.LENGTH
    engine.prioritise(before.request_id, 0)  # finished: ignored


def test_an_engine_is_reached_through_its_public_face(model_dir: Path) -> None:
    engine = Engine.load(str(model_dir), EngineConfig(device="cpu"))
    (result,) = engine.generate([token_ids(5)], SamplingParams(max_tokens=4))
    engine.close()
    assert result.token_ids == reference(model_dir).answer(token_ids(5), 4)
    assert engine.info.block_size == 64
    assert engine.info.dtype == "float32"
