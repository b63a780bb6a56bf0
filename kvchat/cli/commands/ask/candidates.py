"""`kvchat ask -n N`: several answers to one question, from one computed prompt.

Each is a branch; the session goes on with the first.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress

from kvchat.chat.candidates.service import DIFFERING_TEMPERATURE
from kvchat.chat.conversation import Conversation
from kvchat.chat.events import SampleDelta, SampleEvent, SamplesFinished
from kvchat.chat.service import Chat
from kvchat.cli.commands.ask.answer_writers import describe_cost, done_event, event_of, prefill_words
from kvchat.cli.commands.ask.options import AskOptions
from kvchat.cli.output.streams import Output, Status
from kvchat.engine.api.events import PrefillProgress
from kvchat.errors import (
    CacheMissed,
    CapacityError,
    EngineFailed,
    InvalidRequest,
    KvchatError,
    StorageError,
    UsageError,
)
from kvchat.session.tree import Turn
from kvchat.text.answer_footer import PrefillEta

Missed = Callable[[SampleEvent], CacheMissed | None]

BETWEEN = "\n---\n\n"
"""What stands between two answers on standard output."""


class CandidatesWriter:
    """One question and its answers on their way to standard output.

    Args:
        missed: says what is wrong where less was reused than had to be.
        stats: say what they cost.
    """

    def __init__(
        self, options: AskOptions, output: Output, status: Status, *, missed: Missed, stats: bool
    ) -> None:
        self._options = options
        self._output = output
        self._status = status
        self._stats = stats
        self._find_missed = missed
        self._problem: KvchatError | None = None
        self._is_read = True
        self._told: dict[int, int] = {}
        """How many characters of each answer have been told."""

    def run(self, chat: Chat, conversation: Conversation, prompt: str) -> tuple[Sequence[Turn], bool]:
        """Ask, store and write; return the answers, and whether anybody has read them.

        Raises:
            CapacityError, InvalidRequest: refused; the question is taken back.
            EngineFailed: the engine died; what there is of the answers is stored.
            CacheMissed: less was reused than had to be; the answers are stored as interrupted.
        """
        if not chat.sampling.temperature:
            self._status.note(
                f"greedy answers are all the same: drawn at temperature {DIFFERING_TEMPERATURE} instead of 0"
            )
        before = conversation.branch
        question = chat.pose(conversation, prompt)
        try:
            finished = self._follow(chat, conversation)
        except (CapacityError, InvalidRequest, UsageError):
            chat.store.withdraw(conversation.branch, before.leaf_id, [question.id])
            raise
        self._name(chat, conversation, finished.answers)
        if self._problem is not None:
            raise self._problem
        if finished.error is not None:
            raise EngineFailed(finished.error)
        with suppress(BrokenPipeError):
            self._write(conversation, finished.answers)
            return finished.answers, self._is_read
        return finished.answers, False

    def _follow(self, chat: Chat, conversation: Conversation) -> SamplesFinished:
        eta, finished = PrefillEta(), None
        for event in chat.variants.compare(conversation, self._options.num, chat.sampling):
            if self._problem is None and (missed := self._find_missed(event)) is not None:
                self._problem = missed
                chat.stop(conversation)
            match event:
                case PrefillProgress():
                    self._status.show(prefill_words(event, eta))
                case SampleDelta():
                    self._tell(chat, conversation, event)
                case SamplesFinished():
                    finished = event
        self._status.clear()
        assert finished is not None, "the last event"
        return finished

    def _tell(self, chat: Chat, conversation: Conversation, delta: SampleDelta) -> None:
        """Pass a piece on where events are read; stop where nobody reads any more."""
        try:
            self._output.check()
            if self._options.ndjson and self._is_read and self._problem is None:
                self._tell_piece(delta)
        except (BrokenPipeError, StorageError) as error:
            self._is_read = False
            if self._problem is None and isinstance(error, StorageError):
                self._problem = error
            chat.stop(conversation)

    def _tell_piece(self, delta: SampleDelta) -> None:
        kind = "reasoning" if delta.reasoning else "text"
        self._output.json(event_of(kind, sample=delta.sample, text=delta.text))
        if not delta.reasoning:
            self._told[delta.sample] = self._told.get(delta.sample, 0) + len(delta.text)

    def _name(self, chat: Chat, conversation: Conversation, answers: Sequence[Turn]) -> None:
        """Give every answer a branch; the first goes on where the question stands."""
        branch = conversation.branch
        for answer in answers[1:]:
            chat.store.create_branch(branch.session_id, leaf_id=answer.id, beside=branch.name)
        conversation.branch = chat.store.set_leaf(branch, answers[0].id)
        conversation.turns = (*conversation.turns, answers[0])

    def _write(self, conversation: Conversation, answers: Sequence[Turn]) -> None:
        session = conversation.session
        if self._options.ndjson:
            for number, answer in enumerate(answers):
                if rest := answer.text[self._told.get(number, 0) :]:  # held back until no token followed
                    self._tell_piece(SampleDelta(sample=number, text=rest))
        if self._options.json or self._options.ndjson:
            each = [done_event(answer, session) | {"text": answer.text} for answer in answers]
            texts = {} if self._options.ndjson else {"text": answers[0].text}
            self._output.end(done_event(answers[0], session) | texts | {"answers": each})
            return
        self._output.write(BETWEEN.join(answer.text.rstrip("\n") for answer in answers) + "\n")
        if self._stats:
            for answer in answers:
                self._status.note(describe_cost(answer, session))
