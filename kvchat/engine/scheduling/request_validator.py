"""Request validator: admits requests to the engine and gives each its sequence."""

from collections.abc import Iterable

from kvchat.engine.api.config import EngineInfo
from kvchat.engine.api.ids import GroupId, SequenceId, chain_keys
from kvchat.engine.api.request import Request, check_namespace
from kvchat.engine.cache.manager import CacheManager
from kvchat.engine.formats.pool_sizing import least_blocks
from kvchat.engine.formats.shadow.memory import beside_bytes
from kvchat.engine.formats.view_schedule import ViewSchedule
from kvchat.engine.scheduling.output_processor import OutputProcessor
from kvchat.engine.sequences.completion_sequence import Completion
from kvchat.engine.sequences.sequence import Sequence
from kvchat.errors import ContextOverflow, InvalidRequest, PoolExhausted

MIB = 2**20


class RequestValidator:
    """Refuses what can never be answered, before anything of the engine has changed for it."""

    def __init__(
        self,
        manager: CacheManager,
        output: OutputProcessor,
        info: EngineInfo,
        chunk_len: int,
        shadow_bytes: int | None,
    ) -> None:
        """Args:
        info: what the model takes, which stays when its weights are exchanged.
        chunk_len: most tokens computed in one step.
        shadow_bytes: that shadows may take; None: there are none.
        """
        self._manager = manager
        self._output = output
        self._chunk_len = chunk_len
        self._shadow_bytes = shadow_bytes
        self._vocab_size = info.vocab_size
        self._max_context = info.max_context

    def check(self, request: Request) -> None:
        """Raise what `Engine.submit` promises for a request that can never be answered. Pure."""
        prompt_len = len(request.token_ids)
        if not prompt_len:
            raise InvalidRequest("the prompt is empty")
        self.check_path(request.token_ids, request.namespace)
        if prompt_len >= self._max_context:
            raise ContextOverflow(
                f"the conversation has {prompt_len:,} tokens and the model takes {self._max_context:,}; "
                "send less, start a new session, or fork at an earlier message",
                prompt_len,
                self._max_context,
            )
        self._check_capacity(request)

    def check_path(self, token_ids: Iterable[int], namespace: str) -> None:
        """Raise InvalidRequest on an id outside the vocabulary, or a namespace that is no text. Pure."""
        check_namespace(namespace)
        unknown = next((t for t in token_ids if not 0 <= t < self._vocab_size), None)
        if unknown is not None:
            raise InvalidRequest(f"token id {unknown} is not in the model's vocabulary of {self._vocab_size}")

    def sequence_for(self, request: Request) -> Sequence:
        """Return the sequence on which a request runs, with the prompt as its tokens: a new one, or its
        own."""
        if request.sequence is None:
            sequence = self._manager.open(request.owner, request.token_ids, request.namespace)
            sequence.is_saved, sequence.checkpoints = request.is_saved, request.checkpoints
            return sequence
        sequence = self.live(request.sequence)
        if self._output.running_on(sequence.id) is not None:
            raise InvalidRequest(f"sequence {sequence.id} is still answering")
        if sequence.root != self._manager.root_of(request.namespace):
            raise InvalidRequest(f"sequence {sequence.id} is of another namespace; submit without a sequence")
        if tuple(sequence.token_ids[: sequence.computed_len]) != request.token_ids[: sequence.computed_len]:
            raise InvalidRequest(
                f"sequence {sequence.id} does not begin the prompt; submit without a sequence"
            )
        if sequence.computed_len >= len(request.token_ids) or not self._goes_on(sequence, request):
            self._manager.reset(sequence)
        sequence.is_saved, sequence.checkpoints = request.is_saved, request.checkpoints
        sequence.view_schedule = self._view_schedule(sequence, request)
        sequence.token_ids, sequence.known_len = list(request.token_ids), 0
        return sequence

    def _view_schedule(self, sequence: Sequence, request: Request) -> ViewSchedule:
        return self._manager.view_schedules.going_on(
            sequence.view_schedule, request.namespace, len(request.token_ids)
        )

    def _goes_on(self, sequence: Sequence, request: Request) -> bool:
        """Whether what a sequence holds is what the prompt goes on from. Pure."""
        view_schedule, length = self._view_schedule(sequence, request), sequence.computed_len
        before, after = (
            [prune_point for prune_point in one.prune_points if prune_point.at <= length]
            for one in (sequence.view_schedule, view_schedule)
        )
        due = view_schedule.next_prune_point(length)
        return before == after and (due is None or length <= view_schedule.most_found(due))

    def live(self, sequence: SequenceId) -> Sequence:
        """Return a live sequence by its id. Pure."""
        live = self._manager.sequences.get(sequence)
        if live is None:
            raise InvalidRequest(f"there is no live sequence {sequence}")
        return live

    # Capacity

    def needs_of(self, completions: Iterable[Completion]) -> list[tuple[Sequence, dict[GroupId, int]]]:
        """Return what each request needs when it has generated all that it may, its sequence first. Pure."""
        return [
            (
                completion.sequence,
                self._needs(min(completion.prompt_len + completion.max_tokens, self._max_context)),
            )
            for completion in completions
        ]

    def _check_capacity(self, request: Request) -> None:
        """Raise PoolExhausted if a prompt can never be answered with the blocks that may be had for it.

        The answers to a request, and the beams of a search, take turns if need be: what one of them needs
        is enough for all. The last of its tokens takes no place.
        """
        num_tokens = len(request.token_ids)
        self._check_shadow(num_tokens)
        least_new = max(1, self._output.least_tokens(request) - 1)
        for group, needed in self._needs(num_tokens + least_new).items():
            pool = self._manager.pools[group]
            if needed > pool.num_blocks:
                raise PoolExhausted(
                    f"the conversation of {num_tokens} tokens does not fit into the cache; its answer "
                    f"needs {needed} blocks and there are {pool.num_blocks}, so give it more with "
                    "--kv-device-bytes"
                )
            if needed > pool.num_blocks - self._manager.pins.num_pinned(group):
                root = self._manager.root_of(request.namespace)
                keys = chain_keys(root, request.token_ids, self._manager.block_size)
                num_pinned = self._manager.pins.num_others(group, keys)
                if needed > pool.num_blocks - num_pinned:
                    raise PoolExhausted(
                        f"the conversation of {num_tokens} tokens needs {needed} of the cache's "
                        f"{pool.num_blocks} blocks, and {num_pinned} are pinned for others; unpin something, "
                        "or give the cache more with --kv-device-bytes"
                    )

    def _check_shadow(self, num_tokens: int) -> None:
        needed = beside_bytes(self._manager.groups, num_tokens)
        if self._shadow_bytes is not None and needed > self._shadow_bytes:
            in_host_memory = any(group.in_host_memory for group in self._manager.groups)
            place = "the device" if in_host_memory else "host memory beside its blocks"
            raise PoolExhausted(
                f"the shadow of a conversation of {num_tokens} tokens may take {needed / MIB:,.1f} MiB of "
                f"{place}, and {self._shadow_bytes / MIB:,.1f} are allowed; give it more with "
                f"--kv-{'device' if in_host_memory else 'host'}-bytes, or use --cache-format exact"
            )

    def _needs(self, num_tokens: int) -> dict[GroupId, int]:
        size = self._manager.block_size
        return {
            group.id: least_blocks(group, num_tokens, self._chunk_len, size) for group in self._manager.groups
        }
