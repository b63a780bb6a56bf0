"""A conversation as Markdown or JSON, safe to print: stored text never steers the terminal."""

import json
import re
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from kvchat.session.tree import Branch, Finish, Role, Session, Turn

_SPEAKERS = {Role.USER: "You", Role.ASSISTANT: "kvchat"}
_NOTES = {
    Finish.LENGTH: "cut off by the length limit",
    Finish.INTERRUPTED: "interrupted",
    Finish.ERROR: "ended by an error",
    Finish.PARTIAL: "being written",
}
# C0 but tab and line feed, DEL, C1, and the marks that reorder or hide text.
_UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff]")


def terminal_safe(text: str) -> str:
    """Return text without the characters that a terminal would obey instead of showing."""
    return _UNSAFE.sub("", text)


def markdown(session: Session, turns: Sequence[Turn]) -> str:
    """Return a path of a session as Markdown: a heading per message, its text as it was written."""
    parts = [f"# {_line(session.title) or session.id}"]
    if session.system:
        parts.append(f"## System\n\n{terminal_safe(session.system).strip()}")
    parts += [_turn_markdown(turn) for turn in turns]
    return "\n\n".join(parts) + "\n"


def as_json(session: Session, branches: Sequence[Branch], turns: Sequence[Turn]) -> str:
    """Return a session with turns as one JSON object; control characters are escaped."""
    return json.dumps(values(session, branches, turns), ensure_ascii=False, indent=2).translate(_ESCAPES)


def values(session: Session, branches: Sequence[Branch], turns: Sequence[Turn]) -> dict[str, Any]:
    """Return a session with turns as plain values, token ids included."""
    return {
        **asdict(session),
        "branches": [asdict(branch) for branch in branches],
        "turns": [asdict(turn) for turn in turns],
    }


# JSON itself escapes C0; the others in the same form.
_ESCAPES = {
    code: f"\\u{code:04x}"
    for code in (*range(0x7F, 0xA0), 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A), 0xFEFF)
}


def _turn_markdown(turn: Turn) -> str:
    when = datetime.fromtimestamp(turn.created_at, tz=UTC).strftime("%Y-%m-%d %H:%M UTC")
    parts = [f"## {_SPEAKERS[turn.role]} · {when}"]
    if turn.reasoning:
        quoted = "\n".join(
            f"> {line}".rstrip() for line in terminal_safe(turn.reasoning).strip().splitlines()
        )
        parts.append(quoted)
    text = terminal_safe(turn.text).strip()
    if text:
        parts.append(text)
    parts += [f"*({note})*" for note in _notes(turn)]
    return "\n\n".join(parts)


def _notes(turn: Turn) -> list[str]:
    notes = [_NOTES[turn.finish]] if turn.role is Role.ASSISTANT and turn.finish in _NOTES else []
    if turn.damaged:
        notes.append("damaged: the stored text or token ids are not what was written")
    return notes


def _line(text: str) -> str:
    return " ".join(terminal_safe(text).split())
