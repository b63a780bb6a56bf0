"""Request validator: admits requests to the engine and gives each its sequence."""

from collections.abc import Iterable

from kvchat.engine.api.config import EngineInfo
from kvchat.engine.api.ids import SequenceId
from kvchat.engine.api.request import Request, check_namespace
from kvchat.engine.cache.manager import CacheManager
from kvchat.engine.formats.view_schedule import ViewSchedule
from kvchat.engine.scheduling.capacity_check import CapacityCheck
from kvchat.engine.scheduling.output_processor import OutputProcessor
from kvchat.engine.sequences.sequence import Sequence
from kvchat.errors import ContextOverflow, InvalidRequest


class RequestValidator:
    """Refuses what can never be answered, before anything of the engine has changed for it."""

    def __init__(
        self, manager: CacheManager, answers: OutputProcessor, room: CapacityCheck, info: EngineInfo
    ) -> None:
        """Args:
        info: what the model takes, which stays when its weights are exchanged.
        """
        self._manager = manager
        self._output = answers
        self._capacity = room
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
        self._capacity.check(
            request.token_ids,
            self._manager.root_of(request.namespace),
            self._output.least_tokens(request),
        )

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
