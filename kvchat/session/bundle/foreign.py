"""Conversations that other programs exported as JSON: their text, without token ids.

Two forms are known by their content: ChatGPT's `conversations.json` (a list of trees of messages) and the
records that `llm logs --json` prints (a list of questions with their answers). The next question in such a
session renders its whole text anew.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from math import isfinite
from pathlib import Path
from time import time
from typing import Any

from kvchat.errors import BundleError
from kvchat.session.database.statements import one_line, title_of
from kvchat.session.store import new_session_id, new_turn_id
from kvchat.session.timestamp_limits import LATEST
from kvchat.session.tree import MAIN, Branch, BranchName, Finish, Role, Session, Turn, TurnId

MAX_JSON_BYTES = 1 << 30
_ROLES = {"user": Role.USER, "assistant": Role.ASSISTANT}
_MAX_TITLE_LEN = 200
_GAP = "\n\n"
"""Between what one speaker says in pieces."""
_MOST_REPEATED = 16
"""How many times longer than what was said turns may be: a branch out of each piece repeats those before."""
_LEAST_REPEATED_LEN = 1 << 20


ForeignConversation = tuple[Session, Sequence[Branch], Sequence[Turn]]
"""One conversation, as the store adopts it."""


@dataclass(slots=True, eq=False)
class _Message:
    """A message of a tree. Where the same speaker goes on, a message beside it holds what came before too.

    Args:
        piece: what was said last.
        before: the message that this one goes on from.
        text_len: of all of it, in characters.
        goes_on: another message goes on from this one.
    """

    role: Role
    piece: str
    created_at: float
    parent: "_Message | None"
    before: "_Message | None"
    text_len: int
    goes_on: bool = False
    children: list["_Message"] = field(default_factory=list)

    @property
    def text(self) -> str:
        pieces = [self.piece]
        message = self.before
        while message is not None:
            pieces.append(message.piece)
            message = message.before
        return _GAP.join(reversed(pieces))


def read_transcripts(path: Path) -> tuple[list[ForeignConversation], int]:
    """Return the conversations of a file, and how many of it could not be read.

    Raises:
        BundleError: the file is of no known form, or holds no conversation that can be read.
    """
    entries = _entries(path)
    is_chatgpt = any("mapping" in entry for entry in entries)
    found, num_skipped = _each(entries, _chatgpt_conversation) if is_chatgpt else _llm(entries)
    if not found:
        raise BundleError(
            f"{path} holds no conversation that can be read; ChatGPT's conversations.json and "
            "the output of `llm logs --json` can be"
        )
    return found, num_skipped


def _entries(path: Path) -> list[dict[str, Any]]:
    try:
        if path.stat().st_size > MAX_JSON_BYTES:
            raise BundleError(f"{path} has more than {MAX_JSON_BYTES >> 20} MiB; split it")
        value = json.loads(path.read_bytes())
    except OSError as error:
        raise BundleError(f"{path} cannot be read: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise BundleError(f"{path} is no JSON: {error}") from error
    if not isinstance(value, list) or not all(isinstance(entry, dict) for entry in value):
        raise BundleError(
            f"{path} is neither ChatGPT's conversations.json nor the output of `llm logs --json`"
        )
    return value


def _each(
    entries: Iterable[Any], read: Callable[[Any], ForeignConversation | None]
) -> tuple[list[ForeignConversation], int]:
    """Read what can be read: one strange conversation must not keep a thousand others out."""
    results: list[ForeignConversation | None] = []
    for entry in entries:
        try:
            results.append(read(entry))
        except (BundleError, LookupError, TypeError, ValueError, AttributeError, OverflowError):
            results.append(None)
    return [one for one in results if one is not None], results.count(None)


# ChatGPT


def _chatgpt_conversation(entry: dict[str, Any]) -> ForeignConversation | None:
    """Return one conversation; None if nothing was said in it."""
    nodes = entry["mapping"]
    system = ""
    messages: dict[str, _Message | None] = {}
    roots: list[_Message] = []
    for name in _parents_first(nodes):
        node = nodes[name]
        parent = messages[node["parent"]] if node.get("parent") in messages else None
        message = node.get("message") or {}
        text, role = _chatgpt_text(message), (message.get("author") or {}).get("role")
        if role == "system" and text and not system:
            system = text
        if role not in _ROLES or not text:
            messages[name] = parent
            continue
        spoken = _spoken(parent, _ROLES[role], text, _seconds(message.get("create_time")))
        messages[name] = spoken
        if spoken.parent is None:
            roots.append(spoken)
    current = messages.get(entry.get("current_node") or "")
    return _transcript(_text(entry.get("title")), system, _seconds(entry.get("create_time")), roots, current)


def _parents_first(nodes: dict[str, Any]) -> Iterator[str]:
    """Yield the names of a tree's nodes; raises BundleError where they are none."""
    children: dict[str | None, list[str]] = {}
    for name, node in nodes.items():
        parent = node.get("parent")
        children.setdefault(parent if parent in nodes else None, []).append(name)
    waiting = list(reversed(children.get(None, [])))
    num_seen = 0
    while waiting:
        name = waiting.pop()
        num_seen += 1
        yield name
        waiting += reversed(children.get(name, []))
    if num_seen != len(nodes):
        raise BundleError("its messages are no tree")


def _chatgpt_text(message: dict[str, Any]) -> str:
    content = message.get("content") or {}
    parts = content.get("parts") or []
    return "\n".join(part for part in parts if isinstance(part, str)).strip()


# llm


def _llm(entries: Sequence[dict[str, Any]]) -> tuple[list[ForeignConversation], int]:
    conversations: dict[str, list[dict[str, Any]]] = {}
    for number, entry in enumerate(entries):
        name = entry.get("conversation_id")
        conversations.setdefault(name if isinstance(name, str) else f"#{number}", []).append(entry)
    return _each(conversations.values(), _llm_conversation)


def _llm_conversation(entries: list[dict[str, Any]]) -> ForeignConversation | None:
    """Return one conversation; None if nothing was said in it."""
    if not any(isinstance(entry.get("prompt"), str) for entry in entries):
        return None
    entries.sort(key=lambda entry: (_text(entry.get("datetime_utc")), _text(entry.get("id"))))
    roots: list[_Message] = []
    last: _Message | None = None
    for entry in entries:
        at = _iso_seconds(entry.get("datetime_utc"))
        for role, name in ((Role.USER, "prompt"), (Role.ASSISTANT, "response")):
            text = _text(entry.get(name))
            if text:
                last = _spoken(last, role, text, at)
                if last.parent is None:
                    roots.append(last)
    system = next((_text(entry.get("system")) for entry in entries if entry.get("system")), "")
    title = next((_text(entry.get("conversation_name")) for entry in entries), "")
    return _transcript(title, system, _iso_seconds(entries[0].get("datetime_utc")), roots, last)


# Both


def _spoken(parent: _Message | None, role: Role, text: str, at: float) -> _Message:
    """Put a message behind another, or beside it where the same speaker goes on."""
    before, text_len = None, len(text)
    if parent is not None and parent.role is role:
        before, parent = parent, parent.parent
        before.goes_on = True
        text_len += before.text_len + len(_GAP)
    message = _Message(role, text, at, parent, before, text_len)
    if parent is not None:
        parent.children.append(message)
    return message


def _transcript(
    title: str, system: str, created_at: float, roots: list[_Message], current: _Message | None
) -> ForeignConversation | None:
    """Return the tree behind its roots; the branch with `current` is the active one.

    Raises: BundleError: its turns would repeat what was said without measure.
    """
    session_id = new_session_id()
    turns: list[Turn] = []
    leaves: list[TurnId] = []
    kept_len, said_len = 0, _pieces_len(roots)
    kept_roots = _kept(roots, current)
    waiting: list[tuple[_Message, TurnId | None]] = [(root, None) for root in reversed(kept_roots)]
    while waiting:
        message, parent_id = waiting.pop()
        said_len += _pieces_len(message.children)
        kept_len += message.text_len
        if kept_len > max(_LEAST_REPEATED_LEN, _MOST_REPEATED * said_len):
            raise BundleError("its messages repeat each other without measure")
        turn = Turn(
            id=new_turn_id(),
            session_id=session_id,
            parent_id=parent_id,
            role=message.role,
            text=message.text,
            token_ids=None,
            finish=Finish.COMPLETE,
            created_at=message.created_at,
            exact=False,
        )
        turns.append(turn)
        below = _kept(message.children, current)
        waiting += [(child, turn.id) for child in reversed(below)]
        if message is current:
            leaves.insert(0, turn.id)
        elif not below:
            leaves.append(turn.id)
    if not turns:
        return None
    session = Session(
        id=session_id,
        title=one_line(title)[:_MAX_TITLE_LEN] or title_of(turns[0].text),
        system=system,
        model="",
        created_at=created_at,
        updated_at=max(turn.created_at for turn in turns),
    )
    names = [MAIN, *(BranchName(f"{MAIN}-{number}") for number in range(2, len(leaves) + 1))]
    branches = [
        Branch(session_id=session_id, name=name, leaf_id=leaf_id, updated_at=session.updated_at)
        for name, leaf_id in zip(names, leaves, strict=True)
    ]
    return session, branches, turns


def _pieces_len(messages: list[_Message]) -> int:
    return sum(len(message.piece) for message in messages)


def _kept(messages: list[_Message], current: _Message | None) -> list[_Message]:
    """Return messages without those that another goes on from, unless something hangs on them."""
    return [one for one in messages if one.children or not one.goes_on or one is current]


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _seconds(value: object) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value):
        return min(max(0.0, float(value)), LATEST)
    return time()


def _iso_seconds(value: object) -> float:
    try:
        return _seconds(datetime.fromisoformat(_text(value)).timestamp())
    except (ValueError, OverflowError, OSError):
        return time()
