"""Relinking of salvaged sessions and branches; see `relink_turns`.

A value that a digest proves is put back. Where none is found, a pointer leads to the newest turn, and a
column that a person wrote is empty and reported as lost.
"""

import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from kvchat.session.database import digests, statements
from kvchat.session.database.digests import BRANCH_COLUMNS, SESSION_COLUMNS
from kvchat.session.tree import MAIN, Branch, BranchName, Session, SessionId, TurnId

Values = dict[str, Any]
Leaves = Mapping[tuple[str, str], str | None]

_LOST = {"title", "system", "model"}
"""Columns of a session that nothing stands for, and that must be told."""
_MOST_NUMBERED = 64


def relink_sessions(target: sqlite3.Connection, older: Leaves) -> None:
    """Give every turn a session, and every session a branch. Runs in the caller's transaction.

    Args:
        older: where branches led earlier, by session and name, for those that a digest proves nothing about.
    """
    _repair_branches(target, older)
    _repair_sessions(target)


def _repair_branches(target: sqlite3.Connection, older: Leaves) -> None:
    # Whole newest rows came first, then damaged ones, then those that had become older.
    found = [dict(row) for row in target.execute("SELECT * FROM branches ORDER BY rowid")]
    turns: dict[str, list[str]] = {}
    for row in target.execute("SELECT id, session_id FROM turns ORDER BY num"):
        turns.setdefault(row["session_id"], []).append(row["id"])
    sessions = turns.keys() | {row["id"] for row in target.execute("SELECT id FROM sessions")}
    target.execute("DELETE FROM branches")
    for values in found:
        repaired = _repaired_branch(target, values, sessions, turns, older)
        if repaired is not None:
            _insert_branch(target, repaired)
    for session_id in sessions:
        if not statements.branch_names(target, SessionId(session_id)):
            newest = TurnId(turns[session_id][-1]) if session_id in turns else None
            main = Branch(session_id=SessionId(session_id), name=MAIN, leaf_id=newest, updated_at=0.0)
            _insert_branch(target, main)


def _broken_branch(values: Values) -> set[str]:
    unset = {name for name in ("session_id", "name") if not isinstance(values[name], str)}
    if values["digests"] is None:
        return unset
    return unset | digests.broken_columns(BRANCH_COLUMNS, values, values["digests"])


def _repaired_branch(
    target: sqlite3.Connection,
    values: Values,
    sessions: Iterable[str],
    turns: Mapping[str, list[str]],
    older: Leaves,
) -> Branch | None:
    """Return a branch with its name and its leaf as they were, as far as they can be found."""
    tried = (values | {"session_id": session_id} for session_id in (values["session_id"], *sessions))
    found = min(tried, key=lambda one: len(_broken_branch(one)))
    if "session_id" in _broken_branch(found):
        return None
    session_id = SessionId(found["session_id"])
    ids = turns.get(session_id, [])
    key = (session_id, found["name"])
    names = [*(name for place, name in older if place == session_id), *_names(target, session_id)]
    free = found["name"] if key in older else _free(target, session_id, "recovered")
    found = _tried(found, "name", names) or found | {"name": free}
    newest = found["leaf_id"] if found["leaf_id"] in ids else older.get(key, ids[-1] if ids else None)
    found = _tried(found, "leaf_id", [None, *ids]) or found | {"leaf_id": newest}
    if "updated_at" in _broken_branch(found):
        found["updated_at"] = 0.0
    if found["name"] in statements.branch_names(target, session_id):
        return None
    return Branch(**{column: found[column] for column in BRANCH_COLUMNS})


def _tried(values: Values, column: str, candidates: Iterable[object]) -> Values | None:
    """Return the values with that of a column which its digest proves; None if there is none."""
    tried = (values | {column: candidate} for candidate in (values[column], *candidates))
    return next((one for one in tried if column not in _broken_branch(one)), None)


def _names(target: sqlite3.Connection, session_id: SessionId) -> Iterator[str]:
    """Yield names that a branch of a session may have had."""
    for row in target.execute("SELECT active_branch FROM sessions WHERE id = ?", (session_id,)).fetchall():
        yield row["active_branch"]
    for number in range(1, _MOST_NUMBERED):
        yield MAIN if number == 1 else f"{MAIN}-{number}"


def _insert_branch(target: sqlite3.Connection, branch: Branch) -> None:
    """Insert a branch whose leaf is there; otherwise it ends with the newest turn of its session."""
    query = "SELECT id FROM turns WHERE session_id = ? ORDER BY id = ? DESC, num DESC LIMIT 1"
    if branch.leaf_id is not None:
        row = target.execute(query, (branch.session_id, branch.leaf_id)).fetchone()
        branch = replace(branch, leaf_id=None if row is None else TurnId(row["id"]))
    statements.add_branch(target, branch)


def _free(target: sqlite3.Connection, session_id: SessionId, name: str) -> str:
    taken = statements.branch_names(target, session_id)
    return name if name not in taken else statements.free_name(name, taken)


def _repair_sessions(target: sqlite3.Connection) -> None:
    found = [dict(row) for row in target.execute("SELECT * FROM sessions")]
    query = "SELECT session_id AS id FROM turns UNION SELECT session_id FROM branches"
    missing = {row["id"] for row in target.execute(query)} - {values["id"] for values in found}
    for values in filter(_broken_session, found):
        was, session_id = values["id"], _right_id(values, missing)
        if session_id is None:
            target.execute("DELETE FROM sessions WHERE id = ?", (was,))
            missing.add(was)
            continue
        missing.discard(session_id)
        repaired = _repaired_session(target, values | {"id": session_id})
        assignments = ", ".join(f"{name} = ?" for name in repaired)
        target.execute(f"UPDATE sessions SET {assignments} WHERE id = ?", (*repaired.values(), was))
    for session_id in missing:
        _begin_session(target, SessionId(session_id))


def _right_id(values: Values, missing: set[str]) -> str | None:
    """Return whose row this is; None if that cannot be told."""
    tried = (values["id"], *missing)
    return next((str(one) for one in tried if "id" not in _broken_session(values | {"id": one})), None)


def _begin_session(target: sqlite3.Connection, session_id: SessionId) -> None:
    """Insert a session of which turns or a branch are left; none for a branch that ends nowhere."""
    found = target.execute("SELECT min(created_at) AS at FROM turns WHERE session_id = ?", (session_id,))
    created_at = found.fetchone()["at"]
    if created_at is None:
        target.execute("DELETE FROM branches WHERE session_id = ?", (session_id,))
        return
    session = Session(
        id=session_id,
        title=_placeholder(session_id),
        system="",
        model="",
        created_at=created_at,
        updated_at=created_at,
        active_branch=_branch_names(target, session_id)[0],
        lost=frozenset(_LOST),
    )
    statements.insert_session(target, session)


def _repaired_session(target: sqlite3.Connection, values: Values) -> Values:
    """Return a session's columns with each damaged one as it was, or with what may stand in its place."""
    broken, lost = _broken_session(values), set(str(values["lost"]).split()) & _LOST
    for column in broken:
        candidates = list(_candidates(target, values["id"], column))
        for candidate in candidates:
            if column not in _broken_session(values | {column: candidate}):
                values[column] = candidate
                break
        else:
            values[column] = _placeholder(values["id"]) if column == "title" else candidates[0]
            lost |= {column} & _LOST
    known = {column: values[column] for column in SESSION_COLUMNS if column not in lost}
    signed = values["digests"] or bytes(8 * len(SESSION_COLUMNS))
    values["digests"] = digests.changed_digests(SESSION_COLUMNS, signed, values["id"], known)
    values["lost"] = " ".join(sorted(lost))
    return values


def _candidates(target: sqlite3.Connection, session_id: str, column: str) -> Iterator[object]:
    """Yield what a column of a session may have held; first what may stand for it."""
    if column == "active_branch":
        yield from _branch_names(target, session_id)
    elif column in ("created_at", "updated_at"):
        query = (
            "SELECT created_at AS at FROM turns WHERE session_id = ?1 UNION SELECT updated_at FROM branches"
        )
        times = [row["at"] for row in target.execute(f"{query} WHERE session_id = ?1", (session_id,))]
        yield (min if column == "created_at" else max)(times, default=0.0)
        yield from times
    elif column == "pinned":
        yield from (0, 1)
    else:
        yield ""
        named = {"title": "text", "model": "model"}.get(column)
        if named is not None:
            query = f"SELECT {named} AS name FROM turns WHERE session_id = ? ORDER BY num"
            for row in target.execute(query, (session_id,)).fetchall():
                yield statements.title_of(row["name"]) if column == "title" else row["name"]


def _branch_names(target: sqlite3.Connection, session_id: str) -> list[BranchName]:
    """Return the names of a session's branches, last used first."""
    query = "SELECT name FROM branches WHERE session_id = ? ORDER BY updated_at DESC, name"
    return [BranchName(row["name"]) for row in target.execute(query, (session_id,))] or [MAIN]


def _placeholder(session_id: str) -> str:
    return f"recovered {session_id}"


def _broken_session(values: Values) -> set[str]:
    texts = ("id", "title", "system", "model", "active_branch", "namespace")
    unset = {name for name in texts if not isinstance(values[name], str)}
    if values["digests"] is None:
        return unset
    lost = _LOST.intersection(str(values["lost"]).split())
    return unset | digests.broken_columns(SESSION_COLUMNS, values, values["digests"]).difference(lost)
