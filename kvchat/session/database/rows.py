"""Conversion of database rows to values and back; digests tell a row that is not what was written."""

import json
import sqlite3
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from kvchat.engine.api.events import Loaded, Timings, Usage
from kvchat.engine.api.ids import from_u32le, u32le
from kvchat.session.database import digests
from kvchat.session.database.silent_damage import refuse_broken, refuse_no_text
from kvchat.session.tree import (
    Backend,
    Branch,
    BranchName,
    Finish,
    MessagePart,
    Role,
    Session,
    SessionId,
    Stored,
    Turn,
    TurnId,
    Verdict,
    Verification,
)

MAY_BE_LOST = frozenset({"title", "system", "model"})
"""Columns of a session that nothing stands for, and that must be told."""


def session_of(row: sqlite3.Row) -> Session:
    """Return the session a row holds.

    Raises: DamageFound: the row is not what was written.
    """
    refuse_no_text(row, "id", "title", "system", "model", "active_branch")
    refuse_broken("a session", broken_in_session(row))
    return Session(
        id=SessionId(row["id"]),
        title=row["title"],
        system=row["system"],
        model=row["model"],
        created_at=row["created_at"],
        updated_at=row["updated_at"],
        active_branch=BranchName(row["active_branch"]),
        pinned=bool(row["pinned"]),
        namespace=row["namespace"],
        verification=_verification_of(row["verified"]),
        adapter=row["adapter"] or "",
        lost=lost(row),
    )


def branch_of(row: sqlite3.Row) -> Branch:
    """Return the branch a row holds.

    Raises: DamageFound: the row is not what was written.
    """
    refuse_no_text(row, "session_id", "name")
    refuse_broken("a branch", broken_in_branch(row))
    leaf = row["leaf_id"]
    return Branch(
        session_id=SessionId(row["session_id"]),
        name=BranchName(row["name"]),
        leaf_id=None if leaf is None else TurnId(leaf),
        updated_at=row["updated_at"],
    )


def broken_in_session(row: digests.Row) -> frozenset[str]:
    """Return the columns that are not what was written; a row of which nobody knows it is believed."""
    written = row["digests"]
    if written is None:
        return frozenset()
    return digests.broken_columns(digests.SESSION_COLUMNS, row, written) - lost(row)


def broken_in_branch(row: digests.Row) -> frozenset[str]:
    written = row["digests"]
    return frozenset() if written is None else digests.broken_columns(digests.BRANCH_COLUMNS, row, written)


def broken_in_pieces(pieces: Sequence[sqlite3.Row], turn_id: str) -> frozenset[MessagePart]:
    """Return the parts of an unfinished answer that are not what was written; a missing piece breaks all."""
    places = [piece["place"] for piece in pieces if piece["place"] is not None]
    if places != list(range(len(places))):
        return frozenset({MessagePart.TEXT, MessagePart.IDS})
    return frozenset().union(*(digests.broken_in_piece(piece, turn_id) for piece in pieces))


def is_whole(table: str, row: sqlite3.Row) -> bool:
    """Return whether a row of any table is what was written, as far as it can be told."""
    try:
        if table == "turns":
            return not turn_of(row).damaged
        if table == "sessions":
            return not broken_in_session(row)
        return table != "branches" or not broken_in_branch(row)
    except (LookupError, TypeError, ValueError):
        return False


def turn_of(row: sqlite3.Row) -> Turn:
    """Return the turn a row holds, marked as damaged where the row is not what was written."""
    role, finish, ids, broken = _checked(row)
    usage, loaded, timings, backend, stored = _stats_of(row["stats"])
    return Turn(
        id=TurnId(row["id"]),
        session_id=SessionId(row["session_id"]),
        parent_id=None if row["parent_id"] is None else TurnId(row["parent_id"]),
        role=role,
        text=_text(row["text"]),
        reasoning=_text(row["reasoning"]),
        token_ids=ids,
        finish=finish,
        created_at=row["created_at"],
        model=_text(row["model"]),
        fingerprint=_text(row["fingerprint"]),
        tokenizer=_text(row["tokenizer"]),
        usage=usage,
        loaded=loaded,
        timings=timings,
        exact=bool(row["exact"]),
        starts_over=bool(row["starts_over"]),
        damaged=bool(broken),
        broken=broken,
        repaired=bool(row["repaired"]),
        backend=backend,
        stored=stored,
    )


def values_of(turn: Turn, writer: str) -> dict[str, Any]:
    """Return the columns of a turn. An unfinished turn has no digest of the whole: it still grows."""
    unfinished = turn.finish is Finish.PARTIAL
    ids = None if turn.token_ids is None else u32le(turn.token_ids)
    values: dict[str, Any] = {
        "id": turn.id,
        "session_id": turn.session_id,
        "parent_id": turn.parent_id,
        "role": turn.role.value,
        "text": turn.text,
        "reasoning": turn.reasoning,
        "token_ids": ids,
        "finish": turn.finish.value,
        "created_at": turn.created_at,
        "model": turn.model,
        "fingerprint": turn.fingerprint,
        "tokenizer": turn.tokenizer,
        "stats": stats_json(turn),
        "exact": int(turn.exact),
        "starts_over": int(turn.starts_over),
        "writer": writer if unfinished else "",
        "repaired": int(turn.repaired),
    }
    whole = digests.turn_digest(turn.role, turn.parent_id, turn.text, turn.reasoning, ids)
    parts = digests.part_digests(values)
    # What was found to be damaged must not be vouched for.
    vouched = (bytes(len(digest)) if part in turn.broken else digest for part, digest in parts.items())
    return values | {
        "digest": None if unfinished else b"" if turn.damaged else whole,
        "parts": b"".join(vouched),
    }


def session_values(session: Session) -> dict[str, Any]:
    """Return the columns of a session: its fields, three of them as the database has them."""
    values = asdict(session) | {
        "pinned": int(session.pinned),
        "verified": verification_json(session.verification),
        "lost": " ".join(sorted(session.lost)),
    }
    del values["verification"]
    return values


def lost(row: digests.Row) -> frozenset[str]:
    """Return the columns of a session that are empty because of damage."""
    return MAY_BE_LOST.intersection(str(row["lost"]).split())


def verification_json(verification: Verification | None) -> str:
    return "" if verification is None else json.dumps(asdict(verification))


def stats_json(turn: Turn) -> str:
    figures: dict[str, Any] = {
        "usage": turn.usage,
        "loaded": turn.loaded,
        "timings": turn.timings,
        "backend": turn.backend,
    }
    stored = {} if turn.stored is None else {"stored": turn.stored.value}
    return json.dumps(stored | {name: asdict(value) for name, value in figures.items() if value is not None})


def storable(text: str) -> str:
    """Return text as SQLite can keep it: lone surrogates, which a terminal can send, become `?`."""
    return text.encode(errors="replace").decode()


def _checked(row: sqlite3.Row) -> tuple[Role, Finish, tuple[int, ...] | None, frozenset[MessagePart]]:
    blob = row["token_ids"]
    try:
        broken = _broken(row)
    except (TypeError, AttributeError):  # a value of another type than its column's
        broken, blob = frozenset(MessagePart), None
    try:
        ids = None if blob is None else tuple(from_u32le(blob))
    except ValueError:
        ids, broken = None, broken | {MessagePart.IDS}
    role = Role.ASSISTANT if row["role"] == Role.ASSISTANT else Role.USER
    finish = Finish(row["finish"]) if row["finish"] in set(Finish) else Finish.ERROR
    if (role, finish) != (row["role"], row["finish"]):
        broken |= {MessagePart.FACTS}
    return role, finish, ids, broken


def _broken(row: sqlite3.Row) -> frozenset[MessagePart]:
    """Return the parts that are not what was written."""
    if row["digest"] is None:
        if row["finish"] != Finish.PARTIAL:
            return frozenset(MessagePart)
        return digests.broken_parts(row) if row["parts"] else frozenset()
    whole = digests.turn_digest(
        row["role"], row["parent_id"], row["text"], row["reasoning"], row["token_ids"]
    )
    if whole == row["digest"]:  # then only facts that it does not cover can be others
        has_its_facts = digests.has_its_facts(row, row["parts"] or b"")
        return frozenset() if has_its_facts else frozenset({MessagePart.FACTS})
    return digests.broken_parts(row)


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _stats_of(text: str) -> tuple[Usage, Loaded, Timings, Backend | None, Stored | None]:
    """Return the figures of a turn; damaged or foreign ones are dropped, since nothing depends on them."""
    try:
        stats = json.loads(text)
        figures = Usage(**stats["usage"]), Loaded(**stats["loaded"]), Timings(**stats["timings"])
        backend = Backend(**stats["backend"]) if "backend" in stats else None
        return *figures, backend, Stored(stats["stored"]) if stats.get("stored") in set(Stored) else None
    except (ValueError, KeyError, TypeError, AttributeError):
        return Usage(), Loaded(), Timings(), None, None


def _verification_of(text: str) -> Verification | None:
    """Return what was found; no words, or damaged ones, mean that nobody has looked yet."""
    try:
        values = json.loads(text)
        return Verification(**(values | {"verdict": Verdict(values["verdict"])}))
    except (ValueError, KeyError, TypeError):
        return None
