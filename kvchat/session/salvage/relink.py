"""Relinking of salvaged rows: turns into trees, and sessions and branches around them.

A value that a digest proves to be the one that was written is put back. A damaged turn without text stands in
for one that is gone, so that the gap is shown and what follows it is found. Where nothing proves a pointer it
leads to the newest turn, and a column that a person wrote is empty and reported as lost.
"""

import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from kvchat.session.database import digests, rows, statements
from kvchat.session.database.digests import BRANCH_COLUMNS, SESSION_COLUMNS
from kvchat.session.tree import (
    MAIN,
    Branch,
    BranchName,
    Finish,
    MessagePart,
    Role,
    Session,
    SessionId,
    Turn,
    TurnId,
)

Values = dict[str, Any]
Leaves = Mapping[tuple[str, str], str | None]

_MOST_NUMBERED = 64


def relink(target: sqlite3.Connection, older: Leaves) -> None:
    """Make the turns of a new database trees again, and give every turn a session, and every session a
    branch. Runs in the caller's transaction.

    Args:
        older: where branches led earlier, by session and name, for those that a digest proves nothing about.
    """
    damaged = [dict(row) for row in target.execute("SELECT * FROM turns") if not rows.is_whole("turns", row)]
    for values in damaged:
        _put_back_id(target, values)
        _put_back_facts(target, values)
    _mark_missing_turns(target)
    _put_in_order(target)
    _return_pieces(target)
    _repair_branches(target, older)
    _repair_sessions(target)


def _put_back_id(target: sqlite3.Connection, values: Values) -> None:
    """Find the id of a turn of which every digest disagrees, since each is bound to the id."""
    if _broken_parts(values) != set(MessagePart):
        return
    known = {row["id"] for row in target.execute("SELECT id FROM turns")}
    for turn_id in _referenced_ids(target) | known:
        if _broken_parts(values | {"id": turn_id}) == set(MessagePart):
            continue
        if turn_id in known:  # it came whole from elsewhere
            target.execute("DELETE FROM turns WHERE num = ?", (values["num"],))
            return
        _change_turn(target, values, id=turn_id)
        return


def _put_back_facts(target: sqlite3.Connection, values: Values) -> None:
    """Find what a turn's facts were, or at least a parent, so that the turns before it are not hidden."""
    if MessagePart.FACTS not in _broken_parts(values):
        return
    others = [row for row in _places(target) if row["num"] != values["num"]]
    for change in _facts(values, others):
        if digests.has_its_facts(values | change, values["parts"] or b""):
            _change_turn(target, values, **change, repaired=1)
            return
    known = {one["id"] for one in others}
    if values["parent_id"] not in known:
        parent_id = _end_before(target, values["session_id"], values["num"], values["role"])
        _change_turn(target, values, parent_id=parent_id)


def _facts(values: Values, others: Sequence[sqlite3.Row]) -> Iterator[Values]:
    """Yield each single change of a fact to a value that it can have had."""
    sessions = {one["session_id"] for one in others}
    yield from ({"session_id": session_id} for session_id in sessions)
    yield {"parent_id": None}
    yield from ({"parent_id": one["id"]} for one in others)
    yield from ({"role": role.value} for role in Role)
    yield from ({"finish": finish.value} for finish in Finish)
    yield from ({name: flag} for name in ("exact", "starts_over") for flag in (0, 1))


def _mark_missing_turns(target: sqlite3.Connection) -> None:
    """Put a damaged turn without words where others say that one was."""
    places = _places(target)
    known = {one["id"] for one in places}
    for child in places:
        if child["parent_id"] is not None and child["parent_id"] not in known:
            known.add(child["parent_id"])
            _insert_marker(target, child["parent_id"], child["session_id"], child)
    for branch in target.execute("SELECT * FROM branches").fetchall():
        leaf_id = branch["leaf_id"]
        if leaf_id is not None and leaf_id not in known and rows.is_whole("branches", branch):
            known.add(leaf_id)
            _insert_marker(target, leaf_id, branch["session_id"], None)


def _insert_marker(
    target: sqlite3.Connection, turn_id: str, session_id: str, child: sqlite3.Row | None
) -> None:
    places = _places(target)
    taken = {one["num"] for one in places}
    last = max(taken, default=0)
    below = child["num"] if child is not None else last + 1
    free = (
        (num for num in range(child["num"] - 1, 0, -1) if num not in taken) if child is not None else iter(())
    )
    num = next(free, last + 1)
    role = Role.USER if child is not None and child["role"] == Role.ASSISTANT else Role.ASSISTANT
    parent_id = _end_before(target, session_id, below, role)
    turn = Turn(
        id=TurnId(turn_id),
        session_id=SessionId(session_id),
        parent_id=None if parent_id is None else TurnId(parent_id),
        role=role,
        text="",
        token_ids=None,
        finish=Finish.ERROR,
        created_at=0.0,
        exact=False,
    )
    # Nothing vouches for it.
    values = rows.values_of(turn, "") | {"num": num, "digest": b"", "parts": b""}
    statements.insert(target, "turns", values)


def _put_in_order(target: sqlite3.Connection) -> None:
    """Number the turns anew if one stands before its parent, as after damage to a number."""
    places = _places(target)
    nums = {one["id"]: one["num"] for one in places}
    if all(one["parent_id"] is None or nums.get(one["parent_id"], 0) < one["num"] for one in places):
        return
    order = _parents_first(places)
    above = max(one["num"] for one in places)
    _number(target, {one["num"]: above + number for number, one in enumerate(order, start=1)})
    _number(target, {above + number: number for number in range(1, len(order) + 1)})
    if target.execute("SELECT 1 FROM main.sqlite_master WHERE name = 'turns_fts'").fetchone():
        target.execute("INSERT INTO turns_fts (turns_fts) VALUES ('rebuild')")


def _number(target: sqlite3.Connection, nums: Mapping[int, int]) -> None:
    """Give turns other numbers, none of which is taken."""
    for was, becomes in nums.items():
        for piece in target.execute("SELECT * FROM pieces WHERE turn_num = ?", (was,)).fetchall():
            _move_piece(target, piece, becomes)
        target.execute("UPDATE turns SET num = ? WHERE num = ?", (becomes, was))


def _parents_first(places: Sequence[sqlite3.Row]) -> list[sqlite3.Row]:
    """Return turns in an order in which parents come first; one that is its own forebear comes last."""
    waiting: dict[str | None, list[sqlite3.Row]] = {}
    known = {one["id"] for one in places}
    for one in places:
        waiting.setdefault(one["parent_id"] if one["parent_id"] in known else None, []).append(one)
    order: list[sqlite3.Row] = []
    due = waiting.pop(None, [])[::-1]
    while due:
        order.append(one := due.pop())
        due += waiting.pop(one["id"], [])[::-1]
    return order + [one for group in waiting.values() for one in group]


def _return_pieces(target: sqlite3.Connection) -> None:
    """Give pieces of unfinished answers back to the turn that they are bound to."""
    unfinished = target.execute("SELECT num, id FROM turns WHERE finish = 'partial'").fetchall()
    for piece in target.execute("SELECT * FROM pieces").fetchall():
        for turn in unfinished:
            if piece["turn_num"] != turn["num"] and not digests.broken_in_piece(piece, turn["id"]):
                _move_piece(target, piece, turn["num"])
    whose = "SELECT num FROM turns WHERE finish = 'partial'"
    target.execute(f"DELETE FROM pieces WHERE turn_num NOT IN ({whose})")


def _move_piece(target: sqlite3.Connection, piece: sqlite3.Row, turn_num: int) -> None:
    # Written anew, since an encrypted one is encrypted for its place.
    target.execute("DELETE FROM pieces WHERE num = ?", (piece["num"],))
    statements.insert(target, "pieces", {**dict(piece), "turn_num": turn_num})


def _broken_parts(values: Values) -> frozenset[MessagePart]:
    if values["finish"] == Finish.PARTIAL and not values["parts"]:
        return frozenset()
    return digests.broken_parts(values)


def _change_turn(target: sqlite3.Connection, values: Values, **change: object) -> None:
    values |= change
    assignments = ", ".join(f"{name} = ?" for name in change)
    target.execute(f"UPDATE turns SET {assignments} WHERE num = ?", (*change.values(), values["num"]))


def _places(target: sqlite3.Connection) -> list[sqlite3.Row]:
    """Return where each turn stands, whatever became of what it says."""
    return target.execute("SELECT num, id, session_id, parent_id, role FROM turns ORDER BY num").fetchall()


def _end_before(target: sqlite3.Connection, session_id: str, num: int, role: str) -> str | None:
    """Return the turn before a number behind which one of a role must be missing; None if that is not clear.

    Words of another branch must not come to stand before a turn.
    """
    leaves = {row["leaf_id"] for row in target.execute("SELECT leaf_id FROM branches")}
    places = [one for one in _places(target) if one["session_id"] == session_id]
    taken = leaves | {one["parent_id"] for one in places}
    ends = [
        one["id"] for one in places if one["num"] < num and one["role"] != role and one["id"] not in taken
    ]
    return ends[0] if len(ends) == 1 else None


def _referenced_ids(target: sqlite3.Connection) -> set[str]:
    query = "SELECT parent_id AS id FROM turns UNION SELECT leaf_id FROM branches"
    return {row["id"] for row in target.execute(query) if row["id"] is not None}


# Sessions and branches


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


def _broken_branch(values: Values) -> frozenset[str]:
    return rows.broken_in_branch(values).union(_unset(values, "session_id", "name"))


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
        lost=rows.MAY_BE_LOST,
    )
    statements.insert_session(target, session)


def _repaired_session(target: sqlite3.Connection, values: Values) -> Values:
    """Return a session's columns with each damaged one as it was, or with what may stand in its place."""
    broken, lost = _broken_session(values), rows.lost(values)
    for column in broken:
        candidates = list(_candidates(target, values["id"], column))
        for candidate in candidates:
            if column not in _broken_session(values | {column: candidate}):
                values[column] = candidate
                break
        else:
            values[column] = _placeholder(values["id"]) if column == "title" else candidates[0]
            lost |= {column} & rows.MAY_BE_LOST
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


def _broken_session(values: Values) -> frozenset[str]:
    unset = _unset(values, "id", "title", "system", "model", "active_branch", "namespace")
    return rows.broken_in_session(values).union(unset)


def _unset(values: Values, *columns: str) -> Iterator[str]:
    """Yield those of some columns that hold no text."""
    return (column for column in columns if not isinstance(values[column], str))
