"""Statements shared by several operations of the store; each runs inside its caller's transaction."""

import re
import secrets
import sqlite3
from collections.abc import Mapping
from dataclasses import asdict, replace
from itertools import chain, count
from textwrap import wrap
from time import time

from kvchat.errors import SessionExists, SessionNotFound
from kvchat.session import timestamp_limits
from kvchat.session.database import rows
from kvchat.session.database.digests import (
    BRANCH_COLUMNS,
    SESSION_COLUMNS,
    broken_parts,
    changed_digests,
    column_digests,
    has_its_facts,
    piece_digests,
    piece_name,
    with_facts,
)
from kvchat.session.database.silent_damage import refuse_hidden
from kvchat.session.template.message_files import split_files
from kvchat.session.tree import Branch, BranchName, MessagePart, Session, SessionId, Turn, TurnId

_ALPHABET = "abcdefghijklmnopqrstuvwxyz234567"
_TITLE_LEN = 60
_NAME_LEN = 24

_PATH = """
    WITH RECURSIVE path (num, parent_id, depth) AS (
        SELECT num, parent_id, 0 FROM turns WHERE id = ?
        UNION ALL
        SELECT turns.num, turns.parent_id, depth + 1 FROM path JOIN turns ON turns.id = path.parent_id
    )
    SELECT turns.* FROM path JOIN turns USING (num) ORDER BY depth DESC
"""


def title_of(text: str) -> str:
    """Return the first line of a message's words, cut to a title's length; without words its files' names."""
    files, words = split_files(text)
    names = ", ".join(name for name, _ in files)
    line = one_line(next((line for line in words.splitlines() if line.strip()), names))
    return line if len(line) <= _TITLE_LEN else line[: _TITLE_LEN - 1].rstrip() + "…"


def forget_title_of(connection: sqlite3.Connection, turn_id: TurnId) -> None:
    """Let a session have no title if a turn of it has given it the one it has."""
    row = connection.execute("SELECT session_id, text FROM turns WHERE id = ?", (turn_id,)).fetchone()
    if row is not None and session(connection, row["session_id"]).title == title_of(row["text"]):
        change_session(connection, row["session_id"], title="")


def session(connection: sqlite3.Connection, session_id: SessionId) -> Session:
    row = connection.execute("SELECT * FROM sessions WHERE id = ?", (session_id,)).fetchone()
    if row is None:
        refuse_hidden(connection, "sessions", "id", session_id)
        raise SessionNotFound(f"there is no session {session_id!r}; it may have been deleted")
    return rows.session_of(row)


def refuse_taken_title(connection: sqlite3.Connection, title: str) -> None:
    if title and connection.execute("SELECT 1 FROM sessions WHERE title = ?", (title,)).fetchone():
        raise SessionExists(
            f"there is a session named {title!r} already; open it with -s, or choose another name"
        )


def change_session(connection: sqlite3.Connection, session_id: SessionId, **values: str | float) -> None:
    """Change columns of a session and their digests, and no others: damage beside them must stay told."""
    row = connection.execute("SELECT digests, lost FROM sessions WHERE id = ?", (session_id,)).fetchone()
    if row is None:
        return
    changed: dict[str, object] = dict(values)
    changed["lost"] = " ".join(name for name in row["lost"].split() if name not in values)
    if row["digests"] is not None:
        changed["digests"] = changed_digests(SESSION_COLUMNS, row["digests"], session_id, values)
    assignments = ", ".join(f"{name} = ?" for name in changed)
    connection.execute(f"UPDATE sessions SET {assignments} WHERE id = ?", (*changed.values(), session_id))


def branch_names(connection: sqlite3.Connection, session_id: SessionId) -> set[str]:
    found = connection.execute("SELECT name FROM branches WHERE session_id = ?", (session_id,))
    return {row["name"] for row in found}


def insert_session(connection: sqlite3.Connection, session: Session) -> None:
    values = rows.session_values(session)
    insert(connection, "sessions", values | {"digests": column_digests(SESSION_COLUMNS, values)})


def insert(connection: sqlite3.Connection, table: str, values: Mapping[str, object]) -> None:
    names, marks = ", ".join(values), ", ".join("?" * len(values))
    connection.execute(f"INSERT INTO {table} ({names}) VALUES ({marks})", tuple(values.values()))


def free_title(connection: sqlite3.Connection, title: str) -> str:
    """Return a title, with the next free number behind it if another session has it."""
    taken = {row["title"] for row in connection.execute("SELECT title FROM sessions WHERE title != ''")}
    numbered = (f"{title} ({number})" for number in count(2))
    return next(free for free in chain([title], numbered) if free not in taken)


def delete_session(connection: sqlite3.Connection, session_id: SessionId) -> None:
    session(connection, session_id)
    connection.execute("DELETE FROM branches WHERE session_id = ?", (session_id,))
    connection.execute("DELETE FROM turns WHERE session_id = ?", (session_id,))
    connection.execute("DELETE FROM sessions WHERE id = ?", (session_id,))


def add_branch(connection: sqlite3.Connection, branch: Branch) -> None:
    values = asdict(branch)  # its fields are the columns
    insert(connection, "branches", values | {"digests": column_digests(BRANCH_COLUMNS, values)})


def insert_branch(connection: sqlite3.Connection, branch: Branch) -> None:
    """Add a branch and make it the active one."""
    add_branch(connection, branch)
    _activate(connection, branch)


def _activate(connection: sqlite3.Connection, branch: Branch) -> None:
    """Make a branch the one that its session was last used on."""
    change_session(connection, branch.session_id, active_branch=branch.name, updated_at=branch.updated_at)


def next_timestamp(connection: sqlite3.Connection) -> float:
    """Return the time, always behind the last use of any session: a clock may be set back."""
    (newest,) = connection.execute("SELECT max(updated_at) FROM sessions").fetchone()
    now = time()
    return now if newest is None or now > newest else newest + timestamp_limits.STEP_S


def move(connection: sqlite3.Connection, branch: Branch, leaf_id: TurnId | None) -> Branch:
    """Move a branch whose leaf is still what the caller saw; otherwise make a new one beside it."""
    ours = replace(branch, leaf_id=leaf_id, updated_at=next_timestamp(connection))
    moved = connection.execute(
        "UPDATE branches SET leaf_id = ?, updated_at = ?, digests = ?"
        " WHERE session_id = ? AND name = ? AND leaf_id IS ? RETURNING 1",
        (
            leaf_id,
            ours.updated_at,
            column_digests(BRANCH_COLUMNS, asdict(ours)),
            *(branch.session_id, branch.name, branch.leaf_id),
        ),
    ).fetchall()
    if not moved:
        name = free_name(branch.name, branch_names(connection, branch.session_id))
        ours = replace(ours, name=BranchName(name))
        add_branch(connection, ours)
    _activate(connection, ours)
    return ours


def name_branch(connection: sqlite3.Connection, branch: Branch, message: str) -> Branch:
    """Call a branch by the first words of a message, if it has any, and return it as it is called then."""
    words = re.findall(r"[^\W_]+", re.sub("['’]", "", title_of(message).casefold()))
    if not words:
        return branch
    name = wrap(" ".join(words), _NAME_LEN)[0].replace(" ", "-")
    taken = branch_names(connection, branch.session_id) - {branch.name}
    named = replace(branch, name=BranchName(name if name not in taken else free_name(name, taken)))
    connection.execute(
        "DELETE FROM branches WHERE session_id = ? AND name = ?", (branch.session_id, branch.name)
    )
    insert_branch(connection, named)
    return named


def insert_turn(connection: sqlite3.Connection, turn: Turn, writer: str) -> None:
    clean = replace(turn, text=rows.storable(turn.text), reasoning=rows.storable(turn.reasoning))
    insert(connection, "turns", rows.values_of(clean, writer))


def add_piece(connection: sqlite3.Connection, turn_id: TurnId, ids: bytes, text: str, reasoning: str) -> bool:
    """Add a piece behind those of an unfinished turn; False if there is no such turn."""
    turn = connection.execute(
        "SELECT num, (SELECT place FROM pieces WHERE turn_num = turns.num ORDER BY num DESC LIMIT 1) AS last"
        " FROM turns WHERE id = ? AND finish = 'partial'",
        (turn_id,),
    ).fetchone()
    if turn is None:
        return False
    text, reasoning = rows.storable(text), rows.storable(reasoning)
    place = 0 if turn["last"] is None else turn["last"] + 1
    values = {
        "turn_num": turn["num"],
        "token_ids": ids,
        "text": text,
        "reasoning": reasoning,
        "digests": piece_digests(piece_name(turn_id, place), text, reasoning, ids),
        "place": place,
    }
    insert(connection, "pieces", values)
    return True


def path_to(connection: sqlite3.Connection, leaf_id: TurnId) -> list[sqlite3.Row]:
    """Return the rows from the root to a turn."""
    return connection.execute(_PATH, (leaf_id,)).fetchall()


def change_turn(connection: sqlite3.Connection, turn: Turn, writer: str) -> None:
    values = rows.values_of(turn, writer)
    assignments = ", ".join(f"{name} = ?" for name in values)
    connection.execute(f"UPDATE turns SET {assignments} WHERE id = ?", (*values.values(), turn.id))


def mark_turn(
    connection: sqlite3.Connection, turn_id: TurnId, *, model: str, fingerprint: str, exact: bool
) -> None:
    """Say whose an unfinished turn is. Facts that are damaged stay told."""
    row = connection.execute("SELECT * FROM turns WHERE id = ?", (turn_id,)).fetchone()
    if row is None:
        return
    marked = {"model": model, "fingerprint": fingerprint, "exact": int(exact and row["exact"])}
    parts = row["parts"]
    if parts and has_its_facts(row, parts):
        parts = with_facts(parts, {name: row[name] for name in row.keys()} | marked)  # noqa: SIM118
    connection.execute(
        "UPDATE turns SET model = ?, fingerprint = ?, exact = ?, parts = ? WHERE id = ?",
        (*marked.values(), parts, turn_id),
    )


def fold(connection: sqlite3.Connection, turn: Turn) -> None:
    change_turn(connection, turn, "")
    connection.execute("DELETE FROM pieces WHERE turn_num = (SELECT num FROM turns WHERE id = ?)", (turn.id,))


def agrees(connection: sqlite3.Connection, turn: Turn) -> bool:
    """Return whether a rebuilt turn's parts have the digests that were written with them.

    Text whose digest is damaged too may be rebuilt from ids that are right, since they imply it.
    """
    row = connection.execute("SELECT parts FROM turns WHERE id = ?", (turn.id,)).fetchone()
    if row is None:
        return False
    values = rows.values_of(replace(turn, damaged=False), "")
    return broken_parts(values | {"parts": row["parts"]}) <= {MessagePart.TEXT} & turn.broken


def is_shared(connection: sqlite3.Connection, branch: Branch, turn_id: TurnId) -> bool:
    """Return whether anything but this branch's leaf rests on a turn."""
    return bool(
        connection.execute(
            "SELECT 1 FROM turns WHERE parent_id = ?"
            " UNION ALL SELECT 1 FROM branches WHERE session_id = ? AND leaf_id = ? AND name != ?",
            (turn_id, branch.session_id, turn_id, branch.name),
        ).fetchone()
    )


def free_name(beside: str, taken: set[str]) -> str:
    stem, dash, number = beside.rpartition("-")
    base = stem if dash and number.isdigit() else beside
    return next(name for number in count(2) if (name := f"{base}-{number}") not in taken)


def one_line(text: str) -> str:
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())


def random_id(length: int) -> str:
    return "".join(secrets.choice(_ALPHABET) for _ in range(length))
