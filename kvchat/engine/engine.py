"""Engine: many requests on one model and one cache, advanced by `step`.

An engine is synchronous and owned by one thread. `step` admits requests, computes one batch, chooses tokens
and records what they mean for blocks and events.
"""

import time
from collections import abc
from collections.abc import Callable
from pathlib import Path
from typing import Self

from kvchat.engine import usage_snapshot
from kvchat.engine.api.cache_events import CacheEvent
from kvchat.engine.api.config import EngineConfig, EngineInfo
from kvchat.engine.api.events import Event, FinishReason, RequestFinished
from kvchat.engine.api.ids import RequestId, SequenceId
from kvchat.engine.api.inspection import InspectedBlock, InspectionRequest
from kvchat.engine.api.request import Request
from kvchat.engine.api.sampling_params import SamplingParams
from kvchat.engine.api.snapshot import CacheSnapshot
from kvchat.engine.cache import inspection
from kvchat.engine.cache.block_operations import Move
from kvchat.engine.memory.disk.open_tier import open_saver
from kvchat.engine.models.locate import locate_model
from kvchat.engine.results import Handle, Result, collect
from kvchat.engine.scheduling.format_advisor import FormatAdvisor
from kvchat.engine.scheduling.output_processor import OutputProcessor
from kvchat.engine.scheduling.overlapped_decode import OverlappedDecode
from kvchat.engine.scheduling.request_validator import RequestValidator
from kvchat.engine.scheduling.scheduler import Scheduler
from kvchat.engine.sequences.batch_plan import Batch
from kvchat.engine.startup.assembly import build_parts
from kvchat.engine.startup.parts import EngineParts
from kvchat.engine.tiering.idle_demotion import IdleDemotion
from kvchat.engine.tiering.in_flight_loads import InFlightLoads
from kvchat.engine.tiering.load_controller import LoadController
from kvchat.engine.tiering.prefetcher import Prefetcher
from kvchat.engine.tiering.save_policy import SavePolicy
from kvchat.errors import InvalidRequest, PoolExhausted

LOAD_WAIT_S = 0.02
"""How long a step without anything to compute waits for a block to land."""


class Engine:
    """Computes requests on one model; see the module's text."""

    def __init__(self, parts: EngineParts, clock: Callable[[], float] = time.monotonic) -> None:
        config = parts.config
        self.info = parts.info
        self._parts = parts
        self._manager = parts.manager
        self._runner = parts.runner
        self._save_policy = SavePolicy(
            parts.manager, parts.saver, clock, parts.disk_problem, parts.rates, config.is_gone
        )
        self._store = parts.store
        self._clock = clock
        self._loads = InFlightLoads(parts.manager.device, parts.reader, parts.rates, self._carry_out)
        self._prefetcher = Prefetcher(parts.manager, self._loads)
        self._scheduler = Scheduler(parts.manager, config.max_batch_tokens, parts.drafter)
        self._overlapped: OverlappedDecode | None = None
        if parts.runs_ahead:
            self._overlapped = OverlappedDecode(parts.manager, self._scheduler, parts.runner, self._carry_out)
        self._output = OutputProcessor(
            manager=parts.manager,
            scheduler=self._scheduler,
            sampler=parts.sampler,
            save_policy=self._save_policy,
            clock=clock,
            eos_ids=frozenset(parts.info.eos_token_ids),
            max_context=parts.info.max_context,
            launch=None if self._overlapped is None else self._overlapped.launch,
        )
        self._handles: dict[RequestId, Handle] = {}
        self._load_controller = LoadController(
            self._scheduler, self._loads, parts.rates, self._output.events.append, self._carry_out
        )
        self._shadows = parts.shadows
        self._format_advisor = FormatAdvisor(
            parts.manager, parts.info, config.max_batch_tokens, parts.beside_bytes
        )
        self._validator = RequestValidator(
            parts.manager,
            self._output,
            parts.info,
            config.max_batch_tokens,
            None if parts.shadows is None else parts.shadows.limit_bytes,
        )
        self._idle_demotion = IdleDemotion(
            self._scheduler, self._save_policy, clock, config.idle_demote_s, self._carry_out
        )

    @classmethod
    def load(cls, model: str, config: EngineConfig | None = None) -> Self:
        """Load a model by directory, GGUF file, hub id or the name `starter`.

        Raises:
            ModelError: not found, unreadable or not to be served exactly.
            CapacityError: the weights or the smallest cache do not fit.
        """
        config = config or EngineConfig()
        location = locate_model(
            model, cache_dir=config.cache_dir, disk_bytes=config.disk_bytes, encryptor=config.encryptor
        )
        return cls(build_parts(location.name, location.path, config))

    @property
    def has_work(self) -> bool:
        return self._scheduler.has_work or bool(self._output.events)

    @property
    def is_loading(self) -> bool:
        """Whether blocks are on their way to the device; `tick` names those that have arrived."""
        return self._loads.is_busy or self._prefetcher.is_due

    def submit(self, request: Request) -> Handle:
        """Queue a request.

        Raises:
            InvalidRequest: empty prompt, id outside the vocabulary, unknown, busy or diverging sequence.
            ContextOverflow: the prompt leaves no room for an answer in the model's context.
            PoolExhausted: the prompt can never fit into the device pool.
        """
        try:
            self._validator.check(request)
        except PoolExhausted as error:
            raise self._format_advisor.hinted(error, len(request.token_ids)) from None
        sequence = self._validator.sequence_for(request)
        completion = self._output.open(request, sequence)
        handle = Handle(completion.id, sequence.id, self.step, self.cancel)
        self._handles[completion.id] = handle
        return handle

    def step(self) -> tuple[Event, ...]:
        """Compute one batch and return what happened. Does nothing without work."""
        self._output.finish_cancelled()
        self._advance_loads()
        self._admit_waiting()
        batch = self._scheduler.schedule()
        self._carry_out(batch.moves)
        if batch.chunks:
            self._compute(batch)
        elif self.is_loading:
            self._loads.wait(LOAD_WAIT_S)
        elif not self._scheduler.requeue_held():
            self._refuse_stuck()
        self._save_policy.after_step(has_more=self._scheduler.has_work)
        self._idle_demotion.advance()
        return self._deliver()

    def cancel(self, request_id: RequestId) -> None:
        """End a request at the next step; unknown or finished ones are ignored."""
        self._output.cancel(request_id)

    def prioritise(self, request_id: RequestId, priority: int) -> None:
        """Change a request's priority, smaller runs first; unknown or finished ones are ignored."""
        self._output.prioritise(request_id, priority)

    def prioritise_sequence(self, sequence: SequenceId, priority: int) -> None:
        """Change how important a live sequence is while nothing runs on it: of idle sequences the least
        important makes room first. Unknown ones are ignored.
        """
        live = self._manager.sequences.get(sequence)
        if live is not None:
            live.priority = priority

    def fork(self, sequence: SequenceId) -> SequenceId:
        """Return a new live sequence on the same blocks. No byte moves until one of them writes.

        Raises:
            InvalidRequest: no such live sequence.
        """
        return self._manager.fork(self._validator.live(sequence)).id

    def release(self, sequence: SequenceId) -> None:
        """Let go of a live sequence; its blocks stay cached. Cancels the request that runs on it.

        It is saved, unless its owner is gone: `EngineConfig.is_gone`.
        """
        live = self._validator.live(sequence)
        completion = self._output.running_on(sequence)
        if completion is not None:
            self._output.cancel(completion.request_id or completion.id)
            self._output.finish_cancelled()
        if sequence in self._manager.sequences:  # a search lets go of its beams by itself
            self._save_policy.save_sequence(live)
            self._manager.release(live)

    def drain_saves(self) -> None:
        """Wait until nothing is on its way to the disk; what it does not take within seconds is dropped."""
        self._save_policy.after_step()
        self._save_policy.drain()

    def reusable_len(self, token_ids: abc.Sequence[int], namespace: str = "") -> int:
        """Return how many tokens of a prompt need not be computed, wherever they are kept. Moves nothing.

        Raises:
            InvalidRequest: an id outside the vocabulary, or a namespace that is no text.
        """
        self._validator.check_path(token_ids, namespace)
        sequence = self._manager.open("", token_ids, namespace)
        length = self._manager.match(sequence).length
        self._manager.release(sequence)
        return length

    def prefetch(
        self, token_ids: abc.Sequence[int], beside: abc.Sequence[int] = (), namespace: str = ""
    ) -> None:
        """Begin to bring what is stored of a path to the device, ahead of the request that will use it.

        Takes room that nobody holds and holds none of it in the end. Replaces the path that was asked for
        before; without ids it is only given up.

        Args:
            beside: path whose blocks are not to make room for it, that of the session on screen.

        Raises:
            InvalidRequest: an id outside the vocabulary, or a namespace that is no text.
        """
        self._validator.check_path((*token_ids, *beside), namespace)
        self._prefetcher.stop()
        if token_ids:
            self._prefetcher.want(token_ids, beside, self._manager.root_of(namespace))
            self._advance_loads()

    def demote(self, sequence: SequenceId) -> None:
        """Take a live sequence that is not answering off the device.

        What no other sequence needs moves to host memory, as far as loading it from there is faster than
        computing it. The rest stays cached until its place is needed. The next request on the sequence finds
        all of it.

        Raises:
            InvalidRequest: no such live sequence, or it is answering.
        """
        live = self._validator.live(sequence)
        if self._output.running_on(sequence) is not None:
            raise InvalidRequest(f"sequence {sequence} is still answering")
        if self._save_policy.save_leaving(live):
            self._carry_out(self._manager.demote(live))

    def pin(self, sequence: SequenceId) -> int:
        """Keep the full blocks that a live sequence has now on the device, also when it is let go.

        Returns:
            The number of blocks kept. Pinning again covers what has been computed since.

        Raises:
            InvalidRequest: no such live sequence, or nothing of it is on the device.
            PinRefused: too few blocks would be left; the message says how many.
        """
        live = self._validator.live(sequence)
        if not live.computed_len:
            raise InvalidRequest(f"sequence {sequence} is not on the device; ask on it first")
        busy = [*self._scheduler.running, *self._scheduler.waiting]
        return self._manager.pins.pin(live, self._validator.needs_of(busy))

    def unpin(self, sequence: SequenceId) -> None:
        """Undo the pin of a sequence, live or not; nothing happens if there is none."""
        self._manager.pins.unpin(sequence)

    def generate(
        self, prompts: abc.Sequence[abc.Sequence[int]], sampling: SamplingParams | None = None
    ) -> list[Result]:
        """Answer all prompts together; blocks stay cached, sequences do not stay live."""
        requests = [
            Request(token_ids=tuple(prompt), sampling=sampling or SamplingParams()) for prompt in prompts
        ]
        for request in requests:
            self._validator.check(request)
        results = [collect(handle) for handle in [self.submit(request) for request in requests]]
        for result in results:
            for sequence in result.sequences:
                self.release(sequence)
        return results

    def update_weights(self, source: str | Path) -> EngineInfo:
        """Run on other weights of the same model from now on: those of a model directory, or of the one in
        use with an adapter's. Sequences stay live, and their tokens are computed anew when they are used.
        Pins are undone: what they keep is of no use to the new weights.

        Returns: what the engine is now, with its new fingerprint.

        Raises:
            InvalidRequest: a request runs or waits.
            ModelError, CapacityError: the weights cannot be used; everything is as it was.
        """
        self._output.finish_cancelled()
        if self._scheduler.has_work:
            raise InvalidRequest(
                "weights cannot change while requests run or wait; let them end, or cancel them"
            )
        update = self._parts.weights.prepare(Path(source))
        self._prefetcher.stop()
        if self._overlapped is not None:
            self._overlapped.drop()
        while self._loads.is_busy:  # the block that is being read comes from the old store
            self._loads.wait(LOAD_WAIT_S)
            self._loads.collect()
        self._save_policy.close(self._manager.sequences.values())
        if self._store is not None:
            self._store.close()
        self._parts.weights.exchange(update.candidate)
        self._manager.rename(update.fingerprint)
        self._parts.persisted_rates.save(self._parts.rates)
        self._parts.persisted_rates.rename(update.fingerprint.hex())
        self._store = update.store
        self._parts.mover.use(update.store)
        saver = open_saver(self._parts.pool, update.store, self._manager, self._parts.save_transport)
        self._save_policy.use(saver, update.disk_problem)
        self.info = update.describe(self.info, Path(source))
        self._output.eos_ids = frozenset(self.info.eos_token_ids)
        return self.info

    def snapshot(self) -> CacheSnapshot:
        """Return the cache's present state from the pools' own accounting."""
        running = {completion.sequence.id for completion in self._scheduler.running}
        return CacheSnapshot(
            model=self.info.model,
            fingerprint=self.info.fingerprint,
            block_size=self.info.block_size,
            max_context=self.info.max_context,
            tiers=(
                usage_snapshot.device_usage(self._manager, self._shadows),
                usage_snapshot.host_usage(self._manager),
                usage_snapshot.disk_usage(self._store),
            ),
            groups=usage_snapshot.group_usages(self._manager),
            layers=usage_snapshot.layer_usages(self._manager, self._shadows),
            sequences=usage_snapshot.sequence_usages(self._manager, running),
            num_running=len(self._scheduler.running),
            num_waiting=len(self._scheduler.waiting),
            reused_tokens=self._output.reused_tokens,
            computed_tokens=self._output.computed_tokens,
            sampled_tokens=self._output.sampled_tokens,
            room_tokens=usage_snapshot.room_tokens(self._manager, self.info.max_context),
            capacity=self.info.capacity,
            weights=self.info.weights,
            cache_format=self.info.cache_format,
            is_exact=self.info.is_exact,
            owners=usage_snapshot.owner_usages(self._manager),
            moved=usage_snapshot.moved_bytes(self._parts.rates, self._save_policy.written_bytes),
            problem=self._save_policy.problem,
        )

    def inspect(self, request: InspectionRequest) -> tuple[InspectedBlock, ...]:
        """Return the blocks of a path, first block first, or what is kept for nobody; moves nothing.

        Raises:
            InvalidRequest: an id outside the vocabulary, or a namespace that is no text.
        """
        self._validator.check_path(request.token_ids, request.namespace)
        return inspection.inspected(
            self._manager, request, {completion.sequence.id for completion in self._scheduler.running}
        )

    def cache_events(self, since: int = 0) -> tuple[CacheEvent, ...]:
        """Return the newest events of the cache, from this number on; see `CacheEventLog.since`."""
        return self._manager.device.events.since(since)

    def check_integrity(self) -> None:
        """Raise AssertionError on any broken invariant of the bookkeeping."""
        self._manager.check_integrity()
        self._loads.check_integrity()

    def tick(self) -> None:
        """Go on with saving and loading while there is nothing to compute."""
        self._advance_loads()
        self._save_policy.after_step(most_bytes=None)
        self._idle_demotion.advance()

    def close(self) -> None:
        """Save every live sequence and end the writer. May be called twice."""
        for request_id in self._output.requests:
            self._output.cancel(request_id)
        self._output.finish_cancelled()
        self._prefetcher.stop()
        self._load_controller.advance()
        self._loads.close()
        self._parts.mover.settle()
        self._save_policy.close(self._manager.sequences.values())
        if self._store is not None:
            self._store.close()
        self._parts.persisted_rates.save(self._parts.rates)

    def _carry_out(self, moves: abc.Sequence[Move]) -> None:
        self._parts.mover.execute(moves)
        self._manager.device.finish_moves()

    def _advance_loads(self) -> None:
        self._loads.collect()
        self._load_controller.advance()
        self._prefetcher.advance()

    def _admit_waiting(self) -> None:
        """Give waiting requests the blocks they can reuse, and tell how far that brings them."""
        for completion in self._load_controller.admit_waiting():
            if completion.num_generated == 0:
                self._output.events.append(completion.progress())

    def _compute(self, batch: Batch) -> None:
        """Compute a batch and choose tokens, and note how long it took.

        An accelerator is done when its logits have been read, not when the pass returns.
        """
        longest = max(batch.chunks, key=lambda chunk: chunk.num_certain)
        is_prompt = longest.num_certain > 1 and not self._output.completions[longest.request].is_answering
        start_s = self._clock()
        self._output.note_start(batch, start_s)
        compute = self._runner.run if self._overlapped is None else self._overlapped.logits
        self._output.record(batch, compute(batch))
        seconds = self._clock() - start_s
        if is_prompt:
            self._parts.rates.observe_prefill(batch.num_tokens, longest.start, seconds)
        elif longest.num_certain == 1:
            self._parts.drafter.observe(batch, seconds)

    def _refuse_stuck(self) -> None:
        """End the request that cannot get a block though nobody else holds one."""
        stuck = self._scheduler.running or [
            completion for completion in self._scheduler.waiting if not completion.is_held
        ]
        if stuck:
            words = "the cache is full; give it more with --kv-device-bytes, or unpin something"
            full = self._format_advisor.hinted(PoolExhausted(words), len(stuck[0].sequence.token_ids))
            self._output.finish(stuck[0], FinishReason.ERROR, str(full), full.fits_in)

    def _deliver(self) -> tuple[Event, ...]:
        events = tuple(self._output.events)
        self._output.events.clear()
        for event in events:
            handle = self._handles.get(event.request_id)
            if handle is not None:
                handle.push(event)
            if isinstance(event, RequestFinished):
                self._handles.pop(event.request_id, None)
        return events
