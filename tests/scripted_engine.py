"""An engine that says what a script tells it: torch-free, and as strict about sequences as the real one."""

from collections import deque
from collections.abc import Callable, Sequence
from threading import Event as Flag
from time import sleep

from kvchat.engine.api.cache_events import CacheEvent
from kvchat.engine.api.config import EngineInfo
from kvchat.engine.api.engine_phase import EnginePhase, EngineStatus
from kvchat.engine.api.events import (
    Event,
    FinishReason,
    PrefillProgress,
    RequestFinished,
    TokenEmitted,
    Usage,
)
from kvchat.engine.api.ids import RequestId, SequenceId
from kvchat.engine.api.inspection import InspectedBlock, InspectionRequest
from kvchat.engine.api.request import Request
from kvchat.engine.api.snapshot import CacheSnapshot
from kvchat.engine.cache.prefix_matcher import common_run
from kvchat.errors import ContextOverflow, EngineFailed, InvalidRequest, KvchatError

Script = Callable[[tuple[int, ...]], Sequence[int]]


class ScriptedHandle:
    """One request. `step_tokens` tokens come per call of `take_events`, each call `step_s` later. Behind
    `held_after` of them nothing comes until it is cancelled; see `ScriptedEngine`.
    """

    def __init__(
        self, engine: "ScriptedEngine", request: Request, sequence: SequenceId, tokens: Sequence[int]
    ) -> None:
        self.request_id = RequestId(len(engine.requests))
        self.sequence = sequence
        self.cancelled = Flag()
        self.priorities: list[int] = []
        self._engine = engine
        self._request = request
        self._tokens = deque(tokens)
        self._held_after = engine.held_after
        self._num_sampled = 0
        self._reason: FinishReason | None = None
        self._has_begun = False

    def take_events(self, timeout_s: float) -> tuple[Event, ...]:
        assert self._reason is None, "nothing comes after the last event"
        sleep(self._engine.step_s)
        if act := self._engine.at_token.pop(self._num_sampled, None):
            act()
        if self._num_sampled == self._held_after and not self.cancelled.wait(timeout_s):
            return ()
        events: list[Event] = [] if self._has_begun else [self._prefill()]
        self._has_begun = True
        for _ in range(self._engine.step_tokens):
            if self._num_sampled == self._held_after and not self.cancelled.is_set():
                break
            self._reason = self._reason_to_end()
            if self._reason is not None:
                events.append(self._finished())
                break
            events.append(self._sample())
        return tuple(events)

    def prioritise(self, priority: int) -> None:
        self.priorities.append(priority)

    def cancel(self) -> None:
        self.cancelled.set()

    def _sample(self) -> TokenEmitted:
        token = self._tokens.popleft()
        self._num_sampled += 1
        self._engine.feed(self.sequence, token)
        sampling = self._request.sampling
        ends = token in sampling.stop_token_ids and not sampling.ignore_eos
        if ends or (self._request.stop is not None and self._request.stop.feed(token)):
            self._tokens.clear()
        return TokenEmitted(request_id=self.request_id, sequence=self.sequence, token_id=token)

    def _reason_to_end(self) -> FinishReason | None:
        if self._engine.dies_after is not None and self._num_sampled >= self._engine.dies_after:
            raise EngineFailed("the engine stopped: scripted; sessions are safe, restart kvchat")
        if self.cancelled.is_set():
            return FinishReason.CANCELLED
        if not self._tokens:
            return FinishReason.STOP
        limit = self._request.sampling.max_tokens
        return FinishReason.LENGTH if limit is not None and self._num_sampled >= limit else None

    def _prefill(self) -> PrefillProgress:
        num = len(self._request.token_ids)
        return PrefillProgress(
            request_id=self.request_id,
            sequence=self.sequence,
            prompt_tokens=num,
            cached_tokens=0,
            computed_tokens=num,
        )

    def _finished(self) -> RequestFinished:
        assert self._reason is not None
        num = len(self._request.token_ids)
        return RequestFinished(
            request_id=self.request_id,
            sequence=self.sequence,
            reason=self._reason,
            usage=Usage(prompt_tokens=num, computed_tokens=num, completion_tokens=self._num_sampled),
        )


class ScriptedEngine:
    """Implements `EngineClient`.

    Args:
        script: the token ids of the answer to a prompt.
        max_context: longer prompts are refused.
    """

    def __init__(self, script: Script, *, max_context: int = 100_000, fingerprint: str = "ab" * 32) -> None:
        self.requests: list[Request] = []
        self.handles: list[ScriptedHandle] = []
        self.shown: CacheSnapshot | None = None
        self.live: dict[SequenceId, list[int]] = {}
        """Live sequences and their tokens, sampled ones included."""
        self.prefetched: list[list[int]] = []
        self.sequence_priorities: dict[SequenceId, int] = {}
        self.fails: KvchatError | None = None
        self.dies_after: int | None = None
        self.step_tokens = 1
        self.step_s = 0.0
        self.held_after: int | None = None
        """So many tokens come of the requests that are handed in from now on, and the rest never: an answer
        can be ended before its end, however slow whoever ends it is.
        """
        self.at_token: dict[int, Callable[[], object]] = {}
        """What is done once, in the thread that takes the events, when a request has so many tokens."""
        self.handle_class = ScriptedHandle
        self.is_exact = True
        self.adapter: str | None = None
        self._script = script
        self.max_context = max_context
        self._fingerprint = fingerprint
        self._next_sequence = 0

    def status(self) -> EngineStatus:
        return EngineStatus(phase=EnginePhase.READY)

    def info(self) -> EngineInfo:
        if self.fails is not None:
            raise self.fails
        return EngineInfo(
            model="scripted",
            model_dir="",
            fingerprint=self._fingerprint,
            dtype="float32",
            device="cpu",
            block_size=16,
            max_context=self.max_context,
            vocab_size=100_000,
            eos_token_ids=(),
            num_layers=1,
            disk_enabled=False,
            is_exact=self.is_exact,
            adapter=self.adapter,
        )

    def submit(self, request: Request) -> ScriptedHandle:
        self.requests.append(request)
        if len(request.token_ids) >= self.max_context:
            num_tokens = len(request.token_ids)
            raise ContextOverflow("it is too long; shorten it", num_tokens, self.max_context)
        sequence = self._new_sequence([]) if request.sequence is None else request.sequence
        if sequence not in self.live:
            raise InvalidRequest(f"there is no live sequence {sequence}")
        held = self.live[sequence]
        if list(request.token_ids[: len(held)]) != held:
            raise InvalidRequest("the request does not continue its sequence")
        self.live[sequence] = list(request.token_ids[:-1])
        self.feed(sequence, request.token_ids[-1])
        handle = self.handle_class(self, request, sequence, self._script(request.token_ids))
        self.handles.append(handle)
        return handle

    def feed(self, sequence: SequenceId, token_id: int) -> None:
        """Note a token that the sequence holds."""
        self.live[sequence].append(token_id)

    def prioritise_sequence(self, sequence: SequenceId, priority: int) -> None:
        self.sequence_priorities[sequence] = priority

    def fork(self, sequence: SequenceId) -> SequenceId:
        return self._new_sequence(self.live[sequence])

    def release(self, sequence: SequenceId) -> None:
        self.live.pop(sequence, None)

    def drain_saves(self) -> None:
        pass

    def reusable_len(self, token_ids: Sequence[int], namespace: str = "") -> int:
        lengths = [common_run(ids, token_ids) for ids in self.live.values()]
        return min(max(lengths, default=0), len(token_ids) - 1)

    def prefetch(self, token_ids: Sequence[int], *, beside: Sequence[int] = (), namespace: str = "") -> None:
        self.prefetched.append(list(token_ids))

    def cache_events(self, since: int = 0) -> tuple[CacheEvent, ...]:
        return ()

    def inspect(self, request: InspectionRequest) -> tuple[InspectedBlock, ...]:
        return ()

    def snapshot(self) -> CacheSnapshot | None:
        return self.shown

    def close(self) -> None:
        self.live.clear()

    def _new_sequence(self, tokens: list[int]) -> SequenceId:
        self._next_sequence += 1
        sequence = SequenceId(self._next_sequence)
        self.live[sequence] = list(tokens)
        return sequence
