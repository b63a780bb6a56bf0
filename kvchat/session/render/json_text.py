"""A session as JSON for other programs: everything that is stored of it, and nothing of its KV.

`docs/exports.md` has the schema. A new field is no new version; one that goes or changes its meaning is.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from kvchat.session.kv.provenance import is_imported
from kvchat.session.tree import Branch, Session, Turn

FORMAT = "kvchat.session"
VERSION = 1
_NOT_WRITTEN = frozenset({"session_id", "parent_id", "stored"})
"""Of a turn."""
_OF_SESSION = (
    "id", "title", "system", "model", "created_at", "updated_at", "active_branch", "pinned", "imported_kv",
    "verification",
)  # fmt: skip


def json_text(session: Session, branches: Sequence[Branch], turns: Sequence[Turn]) -> str:
    """Return one JSON object, a line per turn; ASCII, so that nothing in it can steer a terminal.

    Args:
        turns: a parent before its children.
    """
    head = {"format": FORMAT, "version": VERSION} | _session_values(session)
    head["branches"] = [
        {"name": one.name, "leaf": one.leaf_id, "updated_at": one.updated_at} for one in branches
    ]
    fields = ",\n".join(f"{json.dumps(name)}: {json.dumps(value)}" for name, value in head.items())
    lines = ",\n".join(json.dumps(_turn_values(turn)) for turn in turns)
    return f'{{\n{fields},\n"turns": [\n{lines}\n]\n}}\n'


def _session_values(session: Session) -> dict[str, Any]:
    values = asdict(session) | {"imported_kv": is_imported(session)}
    return {name: values[name] for name in _OF_SESSION}


def _turn_values(turn: Turn) -> dict[str, Any]:
    values = asdict(turn) | {"parent": turn.parent_id, "broken": sorted(turn.broken)}
    return {name: value for name, value in values.items() if name not in _NOT_WRITTEN}
