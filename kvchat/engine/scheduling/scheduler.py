"""Scheduler: chooses the requests that run and what each computes in the next step.

Waiting requests are admitted in order of priority, then arrival. Each step serves decoding sequences first
and fills the rest of the token budget with prompt chunks, so that a long prompt never stops an answer. Under
pressure idle sequences let go of their blocks first, then the least important, most recent running request
goes back to the queue; what it had computed stays cached as long as there is room.
"""

from bisect import insort
from collections import Counter, abc
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

from kvchat.engine.api.cache_events import CacheEventKind
from kvchat.engine.api.events import Loaded
from kvchat.engine.api.ids import GroupId, RequestId, SequenceId
from kvchat.engine.api.snapshot import Tier
from kvchat.engine.cache.block_operations import Move
from kvchat.engine.cache.manager import CacheManager
from kvchat.engine.cache.prefix_matcher import PrefixMatch
from kvchat.engine.scheduling.admission_backoff import AdmissionBackoff
from kvchat.engine.sequences.batch_plan import Batch, Chunk, ShadowedPrompt
from kvchat.engine.sequences.completion_sequence import Completion
from kvchat.engine.sequences.sequence import Sequence


class Drafter(Protocol):
    """Guesses what will be chosen next, so that a step can compute more than one token of an answer."""

    def propose(
        self, due: abc.Sequence[Completion], num_beside: int, most: int
    ) -> Mapping[RequestId, tuple[int, ...]]:
        """Return tokens that may follow, for each sequence at most as many as it can keep.

        Args:
            due: the sequences whose next token a step is going to choose.
            num_beside: tokens that the step computes for others.
            most: most tokens to return in all.
        """
        ...

    def foresees(self, completion: Completion) -> bool:
        """Take what is new of a sequence; whether anything can be guessed of what follows."""
        ...

    def observe(self, batch: Batch, seconds: float) -> None:
        """Note how long a step took that computed one token of each sequence, and drafts."""
        ...

    def forget(self, request: RequestId) -> None:
        """Drop what is kept of a sequence that has ended."""
        ...


class NoDrafter:
    """Guesses nothing."""

    def propose(
        self, due: abc.Sequence[Completion], num_beside: int, most: int
    ) -> Mapping[RequestId, tuple[int, ...]]:
        return {}

    def foresees(self, completion: Completion) -> bool:
        return False

    def observe(self, batch: Batch, seconds: float) -> None: ...

    def forget(self, request: RequestId) -> None: ...


@dataclass(slots=True)
class Scheduler:
    """Queues over one cache manager. No tensors, no clock. It admits with what is on the device; others bring
    stored blocks there before.

    Args:
        max_batch_tokens: most tokens computed in one step.
        drafter: guesses tokens to compute with the room that a step has left.
        free_reserved: gives up blocks that are held for requests less important than this one, before a
            running request must; False if that gives none back now. Set by who holds any.
    """

    manager: CacheManager
    max_batch_tokens: int
    drafter: Drafter = field(default_factory=NoDrafter)
    free_reserved: Callable[[Completion], bool] = field(default=lambda _: False, init=False)
    waiting: list[Completion] = field(default_factory=list, init=False)
    running: list[Completion] = field(default_factory=list, init=False)
    _backoff: AdmissionBackoff = field(init=False)

    def __post_init__(self) -> None:
        self._backoff = AdmissionBackoff(self.manager)

    @property
    def has_work(self) -> bool:
        return bool(self.waiting or self.running)

    def add(self, completion: Completion) -> None:
        """Queue a request. A sequence that still holds its blocks needs no admission and runs at once."""
        completion.sequence.priority = completion.request.priority
        completion.sequence.idle_since_s = None
        self.manager.states.plan(completion.sequence)
        if completion.sequence.computed_len:
            self.manager.touch(completion.sequence)
            completion.loaded = Loaded(device=completion.sequence.computed_len)
            self.manager.device.events.note(
                CacheEventKind.HIT,
                "its branch is on the device",
                owner=completion.sequence.owner,
                num_blocks=len(completion.sequence.keys),
                num_tokens=completion.sequence.computed_len,
            )
            self.running.append(completion)
        else:
            insort(self.waiting, completion, key=lambda waiting: waiting.rank)

    def prioritise(self, completion: Completion, priority: int) -> None:
        """Change how important a running or waiting request is, from the next step on."""
        completion.request = replace(completion.request, priority=priority)
        completion.sequence.priority = priority
        self._backoff.forget()
        self.waiting.sort(key=lambda waiting: waiting.rank)

    def remove(self, completion: Completion) -> None:
        """Take a finished or cancelled request out; its sequence stays live."""
        queue = self.running if completion in self.running else self.waiting
        queue.remove(completion)
        self.drafter.forget(completion.id)

    def admit(self, completion: Completion, *, is_whole: bool = True) -> tuple[Move, ...] | None:
        """Move the waiting request to the running ones, with the blocks its prompt can reuse of the device's.

        Args:
            is_whole: False: it computes beside a load, and is admitted again with what both have brought.

        Returns:
            The moves that are due before anything else happens, or None if there is no room for it.
        """
        if self.is_refused(completion):
            return None
        match = self._match(completion)
        while (
            moves := self.manager.admit(completion.sequence, match, self._num_following(completion, match))
        ) is None:
            if self.make_room(completion):
                match = self._match(completion)
            elif match.partial and not self.running:
                # The copy's source takes a block of its own; the last request must not fail for that.
                num_whole = len(match.keys) * self.manager.block_size
                match = self._match(completion, num_whole)
            else:
                self.refuse(
                    completion, self.manager.admission.lacking(match, self._num_following(completion, match))
                )
                return None
        self.waiting.remove(completion)
        self.running.append(completion)
        if completion.loaded is None:
            self.manager.touch(completion.sequence)  # once per request: steps do not make a block look wanted
        found = self._provenance(match, completion.sequence.known_len, is_whole=is_whole)
        if completion.loaded is None or (completion.is_loaded_in_part and is_whole):
            completion.loaded, completion.is_loaded_in_part = found, not is_whole
        return moves

    def refuse(self, completion: Completion, lacking: GroupId | None) -> None:
        """Note that a waiting request cannot be admitted for now; see `AdmissionBackoff.note`."""
        self._backoff.note(completion, self.running, lacking)

    def is_refused(self, completion: Completion) -> bool:
        """Whether there was no room for a waiting request, and nothing has happened that could change it.
        Pure.
        """
        return self._backoff.stands(completion, self.running) and not self.idle_sequences()

    def make_room(self, completion: Completion) -> bool:
        """Take blocks from idle sequences or less important requests; False if there are none to take."""
        return (
            self._reset_idle() or self.free_reserved(completion) or self._requeue_less_important(completion)
        )

    def requeue(self, completion: Completion) -> None:
        """Put a running request back; it starts again from what is cached."""
        if (
            completion.first_token_s is None
            and completion.loaded
            and completion.sequence.computed_len <= completion.loaded.total
        ):
            # It has used nothing of what it found, and may find less next time.
            completion.loaded = None
        self.manager.reset(completion.sequence)
        self.running.remove(completion)
        insort(self.waiting, completion, key=lambda waiting: waiting.rank)

    def requeue_held(self) -> bool:
        """Put back the beams that wait for others of their search, and need no blocks until those have caught
        up; False if none is running.
        """
        held = [completion for completion in self.running if completion.is_held]
        for completion in held:
            self.requeue(completion)
        return bool(held)

    def schedule(self) -> Batch:
        """Choose the next step's tokens and make their slots writable. Empty if nothing can run."""
        chunks: dict[RequestId, Chunk] = {}
        moves: list[Move] = []
        budget = self.max_batch_tokens
        for completion in sorted(
            self.running, key=lambda completion: (not completion.is_answering, completion.rank)
        ):
            if not budget or completion.is_held or completion not in self.running:
                continue
            num_tokens = completion.due_within(budget)
            if not num_tokens:
                continue
            num_chunks = len(chunks)
            added = self._extend(completion, num_tokens, chunks)
            if len(chunks) < num_chunks:
                budget = self.max_batch_tokens - sum(len(chunk.token_ids) for chunk in chunks.values())
            if added is None:
                continue
            budget -= num_tokens
            moves += added
            chunks[completion.id] = self._chunk(completion, num_tokens)
        moves += self._add_drafts(chunks, budget)
        # An empty batch reaches no runner, so what changed must wait for the next one.
        changes, dropped = self.manager.log.take() if chunks else ((), ())
        return Batch(tuple(chunks.values()), tuple(moves), changes, dropped)

    def _match(self, completion: Completion, max_len: int | None = None) -> PrefixMatch:
        return self.manager.match(completion.sequence, max_len, resident=True)

    def _provenance(self, match: PrefixMatch, known_len: int, *, is_whole: bool) -> Loaded:
        """Return where a match comes from. What was brought from slower tiers counts once, for the first
        request that is admitted whole with it.
        """
        brought = self.manager.device.brought
        take = brought.pop if is_whole else brought.get
        num_tokens: Counter[Tier] = Counter()
        kept = {number: key for number, (key, _) in match.kept_names.items()}
        parts = [(kept.get(number, key), self.manager.block_size) for number, key in enumerate(match.keys)]
        if match.partial and match.partial.key is not None:
            parts.append((match.partial.key, match.partial.num_tokens))
        if match.state is not None and not self.manager.device.groups_with_tail:
            parts = [(match.state.key, match.length)]  # it stands for all of them
        elif match.state is not None:
            parts.append((match.state.key, 0))
        for key, length in parts:
            tiers = {take((group, key), None) for group in self.manager.pools}
            tier = next((tier for tier in (Tier.DISK, Tier.HOST) if tier in tiers), None)
            if tier is not None:
                num_tokens[tier] += length
        return Loaded(
            device=match.length - num_tokens.total(),
            host=num_tokens[Tier.HOST],
            disk=num_tokens[Tier.DISK],
            stateless=max(0, known_len - match.length) if self.manager.device.has_states else 0,
        )

    def _num_following(self, completion: Completion, match: PrefixMatch) -> int:
        """Return the tokens for which there must be room behind a match: beside others also for the next
        chunk, or the request would have to make way in the same step.
        """
        if not self.running:
            return 0
        return min(len(completion.sequence.token_ids) - match.length, self.max_batch_tokens)

    def _extend(
        self, completion: Completion, num_tokens: int, chunks: dict[RequestId, Chunk]
    ) -> tuple[Move, ...] | None:
        """Make slots writable, taking blocks from idle sequences and then from less important requests, also
        from those in `chunks`.
        """
        while (moves := self.manager.extend(completion.sequence, num_tokens)) is None:
            if self._reset_idle() or self.free_reserved(completion):
                continue
            if len(self.running) == 1:
                return None
            victim = max(self.running, key=lambda other: other.rank)
            chunks.pop(victim.id, None)
            self.requeue(victim)
            if victim is completion:
                return None
        return moves

    def _add_drafts(self, chunks: dict[RequestId, Chunk], budget: int) -> list[Move]:
        """Put drafts behind the last tokens of answers, as far as budget and blocks are left over: nobody
        makes way for a guess.
        """
        running = {completion.id: completion for completion in self.running}
        served = {number: running[number] for number in chunks}
        due = {
            number: completion
            for number, completion in served.items()
            if completion.may_draft and completion.is_decoding and not completion.is_ahead
        }
        if not due:
            return []
        again = [one for one in served.values() if one.is_answering and not one.is_decoding]
        num_beside = sum(len(chunk.token_ids) for chunk in chunks.values()) - len(due)
        num_beside -= sum(len(chunks[one.id].token_ids) for one in again)
        moves: list[Move] = []
        for number, draft in self.drafter.propose(tuple(due.values()), num_beside, budget).items():
            added = self.manager.extend(due[number].sequence, 1 + len(draft)) if draft else None
            if added is not None:
                moves += added
                chunk = chunks[number]
                chunks[number] = replace(chunk, token_ids=chunk.token_ids + draft, num_drafted=len(draft))
        return moves

    def _chunk(self, completion: Completion, num_tokens: int) -> Chunk:
        sequence = completion.sequence
        start = sequence.computed_len
        end = start + num_tokens
        return Chunk(
            request=completion.id,
            sequence=sequence.id,
            start=start,
            token_ids=tuple(sequence.token_ids[start:end]),
            samples=end == len(sequence.token_ids),
            hidden_ranges=self.manager.hidden_ranges(sequence),
            prunes=self.manager.pruning.planned(sequence),
            snapshots=sequence.snapshots_within(end - start),
            shadowed=self._shadowed(sequence),
        )

    def _shadowed(self, sequence: Sequence) -> ShadowedPrompt | None:
        num_tokens = sequence.view_schedule.shadow_start(sequence.computed_len)
        if num_tokens is None:
            return None
        name = sequence.prefix_name(num_tokens, self.manager.block_size)
        return ShadowedPrompt(name=name, num_tokens=num_tokens)

    def _requeue_less_important(self, completion: Completion) -> bool:
        """Take the blocks of the least important running request; False if none is less important."""
        victim = max(self.running, key=lambda other: other.rank, default=completion)
        if victim.rank <= completion.rank:
            return False
        self.requeue(victim)
        return True

    def _reset_idle(self) -> bool:
        """Take the blocks of the idle sequence that gives way first; False if no idle sequence holds any."""
        idle = self.idle_sequences()
        if idle:
            self.manager.reset(idle[0])
        return bool(idle)

    def idle_sequences(self) -> list[Sequence]:
        """Return the sequences that hold blocks and do not run, in the order in which they give way: the
        least important first, among equals the one that has been idle longest. Pure.
        """
        busy = {completion.sequence.id for completion in self.running}
        sequences = self.manager.sequences.values()
        idle = [sequence for sequence in sequences if sequence.computed_len and sequence.id not in busy]
        return sorted(idle, key=lambda sequence: -sequence.priority)

    def touch(self, sequence: SequenceId) -> None:
        """Record that a sequence has just become idle: among equals it is the last to lose its blocks."""
        sequences = self.manager.sequences
        sequences[sequence] = sequences.pop(sequence)
