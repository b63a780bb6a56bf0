"""Candidate service: several answers at once, another token, asides, and read-ahead."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from time import time

from kvchat.chat.candidates.read_ahead import ReadAhead
from kvchat.chat.candidates.samples import Candidates
from kvchat.chat.candidates.token_fork import TokenForks
from kvchat.chat.conversation import Answering, Conversation
from kvchat.chat.events import EditCost, SampleEvent
from kvchat.chat.revision import common_ids, edit_cost, to_last_question
from kvchat.engine.api.sampling_params import SamplingParams
from kvchat.session.kv.provenance import namespace_of
from kvchat.session.store import new_session_id
from kvchat.session.tree import Session, Turn, path_token_ids


class CandidateService:
    """What `Chat` offers besides one answer after the other.

    Args:
        answering: what single answers are written with.
    """

    def __init__(self, answering: Answering) -> None:
        self._answering = answering

    # Several answers

    def compare(
        self, conversation: Conversation, num: int, sampling: SamplingParams
    ) -> Iterator[SampleEvent]:
        """Answer the last question `num` times at once; see `Candidates.run`."""
        return Candidates(self._answering).run(conversation, num, sampling)

    def take(self, conversation: Conversation, answer: Turn) -> None:
        """Go on with one of the answers; see `Candidates.take`."""
        Candidates(self._answering).take(conversation, answer)

    def retry_cost(self, conversation: Conversation) -> EditCost:
        """Return exactly what answering the last question again costs now. Waits for the engine."""
        return self._path_cost(conversation, to_last_question(conversation.turns))

    def reach(self, conversation: Conversation) -> EditCost:
        """Return how much of a conversation need not be computed before its next message."""
        return self._path_cost(conversation, conversation.turns)

    def _path_cost(self, conversation: Conversation, path: tuple[Turn, ...]) -> EditCost:
        ids = path_token_ids(path) or ()
        namespace = namespace_of(conversation.session, path)
        reused = self._answering.engine.reusable_len(ids, namespace) if ids else 0
        return edit_cost(len(ids), reused, conversation.turns[len(path) :])

    @property
    def tokens(self) -> TokenForks:
        """What opens an answer at any of its tokens."""
        return TokenForks(self._answering)

    # Asides

    def throw_away(self, aside: Conversation, back: Conversation) -> bool:
        """Delete what was said on a fork behind the place where it began; return whether that was possible.

        Args:
            aside: the fork; it is closed.
            back: the conversation that it was forked from.

        Returns: False where another branch rests on the aside; then it stays.

        Raises: StorageError: somebody has gone on there meanwhile; nothing was deleted.
        """
        store = self._answering.store
        self._answering.release(aside)
        here = {turn.id for turn in back.turns}
        own = [turn.id for turn in aside.turns if turn.id not in here]
        others = [one for one in store.branches(aside.session.id) if one.name != aside.branch.name]
        if own and any(store.path_holds(one.leaf_id, own[0]) for one in others):
            return False
        store.delete_branch(aside.branch, back.branch, own)
        return True

    # Reading ahead

    def read_ahead(self, conversation: Conversation | None, system: str, text: str) -> ReadAhead:
        """Return what computes the beginning that all messages have that begin with `text`.

        Args:
            conversation: where it will be sent; None for one that is not stored yet, with this `system`.
        """
        session = conversation.session if conversation is not None else _draft(system)
        path = conversation.turns if conversation is not None else ()
        ids = common_ids(self._answering.template, session, path, text)
        owner = conversation.session.id if conversation is not None else ""
        namespace = namespace_of(session, path) if conversation is not None else session.namespace
        checkpoints = self._answering.checkpoints_of(session, path, text)
        return ReadAhead(self._answering, ids, owner=owner, namespace=namespace, checkpoints=checkpoints)

    def beginning_ids(self, system: str, began_at: float) -> tuple[int, ...]:
        """Return what every conversation begins with that has this system prompt and began then."""
        session = replace(_draft(system), created_at=began_at)
        return common_ids(self._answering.template, session, (), "")

    def read(self, token_ids: tuple[int, ...]) -> ReadAhead:
        """Return what computes the beginning of conversations that are not stored yet, and saves it."""
        return ReadAhead(self._answering, token_ids, owner="", namespace="", is_saved=True)

    def words(self, token_ids: Sequence[int]) -> str:
        """Return what tokens say, control tokens by their names."""
        return self._answering.template.tokenizer.decode(list(token_ids), keep_control=True)

    def num_tokens(self, text: str) -> int:
        """Return how many tokens a text has."""
        return len(self._answering.template.tokenizer.encode(text))


def _draft(system: str) -> Session:
    return Session(id=new_session_id(), title="", system=system, model="", created_at=time(), updated_at=0.0)
