"""Prompts: from a path of turns to the next question's token ids, and the turns that will hold them."""

from collections.abc import Sequence
from time import time

from kvchat.session.store import new_turn_id
from kvchat.session.template.chat_template import SYSTEM, ChatTemplate, Message
from kvchat.session.timestamp_limits import calendar
from kvchat.session.tree import Finish, Role, Session, Turn, live_part


def has_usable_ids(template: ChatTemplate, path: Sequence[Turn]) -> bool:
    """Return whether every turn the model sees has undamaged ids of this tokenizer."""
    return all(turn.has_ids and turn.tokenizer == template.tokenizer.digest for turn in live_part(path))


def question(template: ChatTemplate, session: Session, path: Sequence[Turn], text: str) -> Turn:
    """Return the turn of a new question behind a path.

    Its ids continue the path's. Where the path has none that this model could read (another tokenizer,
    imported text, damage) they are the whole conversation rendered anew, and the turn starts over.
    """
    starts_over = not has_usable_ids(template, path)
    ids = question_ids(template, session, path, text, starts_over=starts_over)
    return Turn(
        id=new_turn_id(),
        session_id=session.id,
        parent_id=path[-1].id if path else None,
        role=Role.USER,
        text=text,
        token_ids=tuple(ids),
        finish=Finish.COMPLETE,
        created_at=time(),
        tokenizer=template.tokenizer.digest,
        starts_over=starts_over,
    )


def empty_answer(template: ChatTemplate, asked: Turn) -> Turn:
    """Return the turn of an answer that begins to grow behind a question."""
    return Turn(
        id=new_turn_id(),
        session_id=asked.session_id,
        parent_id=asked.id,
        role=Role.ASSISTANT,
        text="",
        token_ids=(),
        finish=Finish.PARTIAL,
        created_at=time(),
        tokenizer=template.tokenizer.digest,
    )


def history(session: Session, path: Sequence[Turn]) -> list[Message]:
    """Return a path as messages for the template: the system prompt, then question and answer in turn.

    A question that has no answer on this path gets an empty one, as after an answer that was cut short at
    once.
    """
    messages = [Message(SYSTEM, session.system)] if session.system else []
    for turn in path:
        if turn.role is Role.USER and messages and messages[-1].role == Role.USER:
            messages.append(Message(Role.ASSISTANT, ""))
        messages.append(Message(turn.role, turn.text, turn.reasoning))
    if messages and messages[-1].role == Role.USER:
        messages.append(Message(Role.ASSISTANT, ""))
    return messages


def question_ids(
    template: ChatTemplate, session: Session, path: Sequence[Turn], text: str, *, starts_over: bool
) -> list[int]:
    """Return the ids that a question adds behind a path, or the whole conversation's where it starts over."""
    # Frozen per conversation: a template that tells the date must not change the past.
    now = calendar(session.created_at)
    messages = history(session, path)
    if starts_over or not path:
        return template.whole(messages, text, now=now)
    last = path[-1]
    answer_ids = (last.token_ids or ()) if last.role is Role.ASSISTANT else ()
    return template.following(messages, text, answer_ids, now=now)
