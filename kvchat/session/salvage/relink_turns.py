"""Relinking of salvaged turns into trees: their ids, parents and order.

A value that a digest proves to be the one that was written is put back. A damaged turn without text stands in
for one that is gone, so that the gap is shown and what follows it is found.
"""

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kvchat.session.database import digests, rows, statements
from kvchat.session.tree import Finish, MessagePart, Role, SessionId, Turn, TurnId

Values = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """Where a turn stands, whatever became of what it says."""

    num: int
    id: str
    session_id: str
    parent_id: str | None
    role: str


def relink_turns(target: sqlite3.Connection) -> None:
    """Make the turns of a new database trees again. Runs in the caller's transaction."""
    damaged = [dict(row) for row in target.execute("SELECT * FROM turns") if not rows.is_whole("turns", row)]
    for values in damaged:
        _put_back_id(target, values)
        _put_back_facts(target, values)
    _mark_missing_turns(target)
    _put_in_order(target)
    _return_pieces(target)


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
    others = [row for row in _places(target) if row.num != values["num"]]
    for change in _facts(values, others):
        if digests.has_its_facts(values | change, values["parts"] or b""):
            _change_turn(target, values, **change, repaired=1)
            return
    known = {one.id for one in others}
    if values["parent_id"] not in known:
        parent_id = _end_before(target, values["session_id"], values["num"], values["role"])
        _change_turn(target, values, parent_id=parent_id)


def _facts(values: Values, others: Sequence[_Place]) -> Iterator[Values]:
    """Yield each single change of a fact to a value that it can have had."""
    sessions = {one.session_id for one in others}
    yield from ({"session_id": session_id} for session_id in sessions)
    yield {"parent_id": None}
    yield from ({"parent_id": one.id} for one in others)
    yield from ({"role": role.value} for role in Role)
    yield from ({"finish": finish.value} for finish in Finish)
    yield from ({name: flag} for name in ("exact", "starts_over") for flag in (0, 1))


def _mark_missing_turns(target: sqlite3.Connection) -> None:
    """Put a damaged turn without words where others say that one was."""
    places = _places(target)
    known = {one.id for one in places}
    for child in places:
        if child.parent_id is not None and child.parent_id not in known:
            known.add(child.parent_id)
            _insert_marker(target, child.parent_id, child.session_id, child)
    for branch in target.execute("SELECT * FROM branches").fetchall():
        leaf_id = branch["leaf_id"]
        if leaf_id is not None and leaf_id not in known and rows.is_whole("branches", branch):
            known.add(leaf_id)
            _insert_marker(target, leaf_id, branch["session_id"], None)


def _insert_marker(target: sqlite3.Connection, turn_id: str, session_id: str, child: _Place | None) -> None:
    places = _places(target)
    taken = {one.num for one in places}
    last = max(taken, default=0)
    below = child.num if child is not None else last + 1
    free = (num for num in range(child.num - 1, 0, -1) if num not in taken) if child is not None else iter(())
    num = next(free, last + 1)
    role = Role.USER if child is not None and child.role == Role.ASSISTANT else Role.ASSISTANT
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
    nums = {one.id: one.num for one in places}
    if all(one.parent_id is None or nums.get(one.parent_id, 0) < one.num for one in places):
        return
    order = _parents_first(places)
    above = max(one.num for one in places)
    _number(target, {one.num: above + number for number, one in enumerate(order, start=1)})
    _number(target, {above + number: number for number in range(1, len(order) + 1)})
    if target.execute("SELECT 1 FROM main.sqlite_master WHERE name = 'turns_fts'").fetchone():
        target.execute("INSERT INTO turns_fts (turns_fts) VALUES ('rebuild')")


def _number(target: sqlite3.Connection, nums: Mapping[int, int]) -> None:
    """Give turns other numbers, none of which is taken."""
    for was, becomes in nums.items():
        for piece in target.execute("SELECT * FROM pieces WHERE turn_num = ?", (was,)).fetchall():
            _move_piece(target, piece, becomes)
        target.execute("UPDATE turns SET num = ? WHERE num = ?", (becomes, was))


def _parents_first(places: Sequence[_Place]) -> list[_Place]:
    """Return turns in an order in which parents come first; one that is its own forebear comes last."""
    waiting: dict[str | None, list[_Place]] = {}
    known = {one.id for one in places}
    for one in places:
        waiting.setdefault(one.parent_id if one.parent_id in known else None, []).append(one)
    order: list[_Place] = []
    due = waiting.pop(None, [])[::-1]
    while due:
        order.append(one := due.pop())
        due += waiting.pop(one.id, [])[::-1]
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


def _broken_parts(values: Values) -> set[MessagePart]:
    return set(digests.broken_parts(values, values["parts"] or b""))


def _change_turn(target: sqlite3.Connection, values: Values, **change: object) -> None:
    values |= change
    assignments = ", ".join(f"{name} = ?" for name in change)
    target.execute(f"UPDATE turns SET {assignments} WHERE num = ?", (*change.values(), values["num"]))


def _places(target: sqlite3.Connection) -> list[_Place]:
    found = target.execute("SELECT num, id, session_id, parent_id, role FROM turns ORDER BY num")
    return [_Place(**dict(row)) for row in found]


def _end_before(target: sqlite3.Connection, session_id: str, num: int, role: str) -> str | None:
    """Return the turn before a number behind which one of a role must be missing; None if that is not clear.

    Words of another branch must not come to stand before a turn.
    """
    leaves = {row["leaf_id"] for row in target.execute("SELECT leaf_id FROM branches")}
    places = [one for one in _places(target) if one.session_id == session_id]
    taken = leaves | {one.parent_id for one in places}
    ends = [one.id for one in places if one.num < num and one.role != role and one.id not in taken]
    return ends[0] if len(ends) == 1 else None


def _referenced_ids(target: sqlite3.Connection) -> set[str]:
    query = "SELECT parent_id AS id FROM turns UNION SELECT leaf_id FROM branches"
    return {row["id"] for row in target.execute(query) if row["id"] is not None}
