"""The engine's thread serves any thread, and nobody waits for it in vain."""

import os
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Thread
from time import monotonic

import pytest

from kvchat.engine.api.config import EngineConfig
from kvchat.engine.api.engine_phase import EnginePhase
from kvchat.engine.api.events import FinishReason, RequestFinished, TokenEmitted
from kvchat.engine.api.ids import RequestId, SequenceId
from kvchat.engine.api.request import Request, StopMatcher
from kvchat.engine.api.sampling_params import SamplingParams
from kvchat.engine.engine import Engine
from kvchat.engine.worker import NICENESS, Worker, WorkerHandle
from kvchat.errors import EngineFailed, InvalidRequest, ModelError
from tests.engine.conftest import OpenEngine
from tests.engine.tiny_models import answer, reference, token_ids
from tests.patience import PATIENCE_S, wait_until

pytestmark = pytest.mark.cpu

StartWorker = Callable[..., Worker]


@pytest.fixture
def start_worker() -> Iterator[StartWorker]:
    workers = []

    def start(model_dir: Path, *, steps_aside: bool = False, **settings: object) -> Worker:
        config = EngineConfig(device="cpu", block_size=16, **settings)  # type: ignore[arg-type]
        worker = Worker("tiny", model_dir, config, steps_aside=steps_aside)
        workers.append(worker)
        worker.start()
        return worker

    yield start
    for worker in workers:
        worker.close()


def ask(
    length: int,
    num_tokens: int,
    seed: int = 0,
    stop: StopMatcher | None = None,
    sequence: SequenceId | None = None,
) -> Request:
    ids = tuple(token_ids(length, seed))
    return Request(
        token_ids=ids, sampling=SamplingParams(max_tokens=num_tokens), stop=stop, sequence=sequence
    )


def collect(handle: WorkerHandle) -> tuple[list[int], RequestFinished]:
    """Return a request's tokens and its end."""
    tokens: list[int] = []
    end_s = monotonic() + PATIENCE_S
    while monotonic() < end_s:
        for event in handle.take_events(timeout_s=1.0):
            if isinstance(event, TokenEmitted):
                tokens.append(event.token_id)
            if isinstance(event, RequestFinished):
                return tokens, event
    raise AssertionError("the request did not come to an end")


def in_thread(work: Callable[[], None]) -> Thread:
    thread = Thread(target=work, daemon=True)
    thread.start()
    return thread


def test_a_request_handed_in_while_the_model_loads_is_answered(
    model_dir: Path, start_worker: StartWorker
) -> None:
    worker = start_worker(model_dir)
    handle = worker.submit(ask(30, 12))
    tokens, end = collect(handle)
    assert tokens == reference(model_dir).answer(token_ids(30), 12)
    assert end.reason is FinishReason.LENGTH
    assert worker.status().phase is EnginePhase.READY
    assert worker.info().vocab_size == 512


def test_before_it_starts_a_worker_is_loading_and_has_no_snapshot(model_dir: Path) -> None:
    worker = Worker("tiny", model_dir, EngineConfig(device="cpu"))
    assert worker.status().phase is EnginePhase.LOADING
    assert worker.snapshot() is None
    assert worker.failure is None
    worker.close()


def test_threads_that_ask_at_once_each_get_their_answer(model_dir: Path, start_worker: StartWorker) -> None:
    worker = start_worker(model_dir)
    answers: dict[int, list[int]] = {}

    def converse(seed: int) -> None:
        answers[seed] = collect(worker.submit(ask(25, 15, seed)))[0]

    threads = [in_thread(lambda seed=seed: converse(seed)) for seed in range(4)]  # type: ignore[misc]
    for thread in threads:
        thread.join(PATIENCE_S)
    for seed in range(4):
        assert answers[seed] == reference(model_dir).answer(token_ids(25, seed), 15)


def test_forks_and_releases_reach_the_engine(model_dir: Path, start_worker: StartWorker) -> None:
    worker = start_worker(model_dir)
    handle = worker.submit(ask(30, 5))
    tokens, _ = collect(handle)
    child = worker.fork(handle.sequence)
    turn = (*token_ids(30), *tokens, 7)
    request = Request(token_ids=turn, sampling=SamplingParams(max_tokens=5), sequence=child)
    answered, end = collect(worker.submit(request))
    assert answered == reference(model_dir).answer(turn, 5)
    assert end.usage.cached_tokens == 34
    for sequence in (child, handle.sequence, child, SequenceId(99)):
        worker.release(sequence)
    with pytest.raises(InvalidRequest, match="no live sequence"):
        worker.fork(child)


def test_a_refused_request_is_the_askers_problem_alone(model_dir: Path, start_worker: StartWorker) -> None:
    worker = start_worker(model_dir)
    with pytest.raises(InvalidRequest, match="empty"):
        worker.submit(Request(token_ids=()))
    worker.cancel(collect(worker.submit(ask(5, 3)))[1].request_id)
    assert collect(worker.submit(ask(5, 3)))[0] == reference(model_dir).answer(token_ids(5), 3)


def test_snapshots_follow_the_engine(model_dir: Path, start_worker: StartWorker) -> None:
    worker = start_worker(model_dir)
    handle = worker.submit(ask(40, 3))
    collect(handle)

    def is_told() -> bool:
        snapshot = worker.snapshot()
        return snapshot is not None and [one.num_tokens for one in snapshot.sequences] == [42]

    wait_until(is_told)


def test_a_model_that_cannot_be_loaded_reaches_everyone_who_asks(
    tmp_path: Path, start_worker: StartWorker
) -> None:
    worker = start_worker(tmp_path / "nowhere")
    with pytest.raises(ModelError):
        worker.info()
    with pytest.raises(ModelError):
        worker.submit(ask(5, 3))
    status = worker.status()
    assert status.phase is EnginePhase.FAILED
    assert isinstance(status.error, ModelError)
    assert status.detail
    worker.close()


def fail(engine: Engine) -> None:
    raise RuntimeError("a bug in the engine")


def test_an_engine_that_dies_tells_everyone_who_waits(model_dir: Path, start_worker: StartWorker) -> None:
    worker = start_worker(model_dir)
    patient = worker.submit(ask(10, 1000))
    errors: list[Exception] = []

    def wait() -> None:
        try:
            collect(patient)
        except EngineFailed as error:
            errors.append(error)

    thread = in_thread(wait)
    other = worker.submit(ask(10, 900, seed=1))
    worker._post(fail)
    with pytest.raises(EngineFailed, match="a bug in the engine"):
        collect(other)
    thread.join(PATIENCE_S)
    assert len(errors) == 1
    with pytest.raises(EngineFailed):
        worker.submit(ask(5, 3))
    with pytest.raises(EngineFailed):
        worker.fork(patient.sequence)
    assert worker.status().phase is EnginePhase.FAILED
    worker.close()


def test_closing_ends_what_runs_and_keeps_what_it_computed(
    model_dir: Path, start_worker: StartWorker, open_engine: OpenEngine, tmp_path: Path
) -> None:
    worker = start_worker(model_dir, cache_dir=tmp_path)
    handle = worker.submit(ask(100, 900))
    tokens: list[int] = []
    while len(tokens) < 5:
        tokens += [event.token_id for event in handle.take_events(1.0) if isinstance(event, TokenEmitted)]
    worker.close()
    rest, end = collect(handle)
    text = token_ids(100) + tokens + rest
    assert end.reason is FinishReason.CANCELLED
    assert end.usage.completion_tokens == len(tokens + rest)
    assert worker.status().phase is EnginePhase.CLOSED
    result = answer(open_engine(model_dir, cache_dir=tmp_path), text, 3)
    assert result.loaded.disk == len(text) - 1


def test_a_closed_worker_refuses_and_closes_again(model_dir: Path, start_worker: StartWorker) -> None:
    worker = start_worker(model_dir)
    worker.info()
    worker.close()
    worker.close()
    with pytest.raises(EngineFailed, match="closed"):
        worker.submit(ask(5, 3))
    worker.cancel(RequestId(1))
    worker.release(SequenceId(1))


@pytest.mark.skipif(sys.platform != "linux", reason="niceness belongs to threads on Linux alone")
@pytest.mark.parametrize("steps_aside", [False, True])
def test_an_engine_beside_a_window_lets_it_have_the_processor_first(
    model_dir: Path, start_worker: StartWorker, *, steps_aside: bool
) -> None:
    before = {thread.native_id for thread in threading.enumerate()}
    worker = start_worker(model_dir, steps_aside=steps_aside)
    worker.info()
    mine = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
    [engines] = [thread for thread in threading.enumerate() if thread.native_id not in before]
    assert engines.native_id is not None
    niceness = os.getpriority(os.PRIO_PROCESS, engines.native_id)
    assert niceness == (min(mine + NICENESS, 19) if steps_aside else mine)
