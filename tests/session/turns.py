"""Turns and branches for tests of the store."""

from collections.abc import Sequence
from time import time

from kvchat.session.kv.block_references import References, add_turns
from kvchat.session.store import Outcome, SessionStore, new_turn_id
from kvchat.session.tree import MAIN, Branch, Finish, Role, SessionId, Turn, TurnId

FINGERPRINT = "ab" * 32


def question(
    session_id: SessionId, text: str = "Hello?", ids: Sequence[int] = (1, 2, 3), parent: TurnId | None = None
) -> Turn:
    return Turn(
        id=new_turn_id(),
        session_id=session_id,
        parent_id=parent,
        role=Role.USER,
        text=text,
        token_ids=tuple(ids),
        finish=Finish.COMPLETE,
        created_at=time(),
        tokenizer="tok",
    )


def open_answer(asked: Turn) -> Turn:
    return Turn(
        id=new_turn_id(),
        session_id=asked.session_id,
        parent_id=asked.id,
        role=Role.ASSISTANT,
        text="",
        token_ids=(),
        finish=Finish.PARTIAL,
        created_at=time(),
        fingerprint=FINGERPRINT,
        tokenizer="tok",
    )


def begin_answer(
    store: SessionStore, branch: Branch | None = None, text: str = "Hello?"
) -> tuple[Branch, Turn]:
    """Store a question on a branch, or in a session of its own; return the branch and the open answer."""
    if branch is None:
        branch = store.branch(store.create_session().id, MAIN)
    asked = question(branch.session_id, text, parent=branch.leaf_id)
    answer = open_answer(asked)
    return store.add_turns(branch, (asked, answer)), answer


def exchange(
    store: SessionStore, branch: Branch, text: str, reply: str, ids: Sequence[int] = (7, 8, 9)
) -> Branch:
    """Store a question and its complete answer on a branch."""
    branch, answer = begin_answer(store, branch, text)
    store.append_to_answer(answer.id, ids, reply)
    store.finish_answer(answer.id, Outcome(finish=Finish.COMPLETE))
    return branch


def references(store: SessionStore, block_size: int) -> References:
    """Return what all sessions refer to."""
    found = References()
    for one in store.list_sessions():
        add_turns(found, store, one.session.id, store.all_turns(one.session.id), block_size)
    return found
