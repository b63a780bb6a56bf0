"""Session lookup: by title or id, by what was said, and all of them in a list."""

import sqlite3
from dataclasses import dataclass
from difflib import get_close_matches

from kvchat.errors import SessionAmbiguous, SessionNotFound
from kvchat.session.database.digests import has_its_text
from kvchat.session.database.rows import session_of, turn_of
from kvchat.session.database.statements import session
from kvchat.session.tree import MessagePart, Role, Session, SessionId, TurnId

_MIN_ID_PREFIX = 4
_MAX_LISTED = 8
_EXCERPT_LEN = 200

_SUMMARIES = """
    SELECT sessions.*,
        (SELECT count(*) FROM turns WHERE session_id = sessions.id) AS num_turns,
        (SELECT coalesce(sum(length(token_ids)), 0) / 4 FROM turns WHERE session_id = sessions.id)
            + (SELECT coalesce(sum(length(pieces.token_ids)), 0) / 4
               FROM turns JOIN pieces ON pieces.turn_num = turns.num
               WHERE session_id = sessions.id AND finish = 'partial') AS num_tokens,
        (SELECT count(*) FROM branches WHERE session_id = sessions.id) AS num_branches,
        NOT EXISTS (SELECT 1 FROM turns WHERE session_id = sessions.id AND role = 'assistant'
            AND NOT exact AND token_ids IS NOT NULL) AS is_exact,
        (SELECT num FROM turns
         WHERE session_id = sessions.id AND text != '' ORDER BY num DESC LIMIT 1) AS newest
    FROM sessions ORDER BY updated_at DESC, id
"""

UNFINISHED = """
    SELECT id FROM sessions WHERE id IN (SELECT session_id FROM turns WHERE finish = 'partial')
    ORDER BY updated_at DESC
"""

_SEARCH = """
    SELECT turns.*, snippet(turns_fts, 0, '', '', '…', 16) AS excerpt
    FROM turns_fts JOIN turns ON turns.num = turns_fts.rowid
    WHERE turns_fts MATCH ? ORDER BY rank LIMIT ?
"""


_BELOW = """
    WITH RECURSIVE below (id) AS (
        VALUES (?) UNION SELECT turns.id FROM turns JOIN below ON turns.parent_id = below.id
    ) SELECT id FROM below
"""

_QUESTIONS = """
    SELECT id, text, reasoning, parts FROM turns WHERE role = 'user' AND text != ''
    ORDER BY num DESC LIMIT ?
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionSummary:
    """A line of the session list. `num_tokens` counts every branch once; `excerpt` is the newest text.

    `is_exact`: no answer was sampled on approximate KV.
    """

    session: Session
    num_turns: int
    num_tokens: int
    num_branches: int
    excerpt: str
    is_exact: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchHit:
    session_id: SessionId
    title: str
    turn_id: TurnId
    role: Role
    created_at: float
    excerpt: str


def find(connection: sqlite3.Connection, reference: str) -> Session:
    """Return the one session that `reference` names; see `SessionStore.find`."""
    sessions = [
        session_of(row) for row in connection.execute("SELECT * FROM sessions ORDER BY updated_at DESC")
    ]
    for candidates in _meanings(sessions, reference):
        if len(candidates) > 1:
            raise SessionAmbiguous(_ambiguous(reference, candidates))
        if candidates:
            return candidates[0]
    raise SessionNotFound(_not_found(reference, sessions))


def summaries(connection: sqlite3.Connection) -> tuple[SessionSummary, ...]:
    return tuple(
        SessionSummary(
            session=session_of(row),
            num_turns=row["num_turns"],
            num_tokens=row["num_tokens"],
            num_branches=row["num_branches"],
            is_exact=bool(row["is_exact"]),
            excerpt=_excerpt(connection, row["newest"]),
        )
        for row in connection.execute(_SUMMARIES)
    )


def search(connection: sqlite3.Connection, text: str, limit: int) -> tuple[SearchHit, ...]:
    # Every word quoted: what a person types is never query syntax.
    query = " ".join(
        '"' + word.replace('"', '""') + '"*' for word in text.split() if any(map(str.isalnum, word))
    )
    if not query:
        return ()
    return tuple(_hit(connection, row) for row in connection.execute(_SEARCH, (query, limit)))


def turns_below(connection: sqlite3.Connection, turn_id: TurnId) -> set[str]:
    """Return the ids of a turn and of all that rest on it."""
    return {row["id"] for row in connection.execute(_BELOW, (turn_id,))}


def recent_questions(connection: sqlite3.Connection, limit: int) -> tuple[str, ...]:
    """Return the texts of the newest messages of the person, oldest first, each once; no damaged ones."""
    found = connection.execute(_QUESTIONS, (limit,)).fetchall()
    texts = dict.fromkeys(row["text"] for row in found if has_its_text(row, row["parts"]))
    return tuple(reversed(texts))


def _hit(connection: sqlite3.Connection, row: sqlite3.Row) -> SearchHit:
    turn = turn_of(row)
    return SearchHit(
        session_id=turn.session_id,
        title=session(connection, turn.session_id).title,
        turn_id=turn.id,
        role=turn.role,
        created_at=turn.created_at,
        excerpt="" if MessagePart.TEXT in turn.broken else row["excerpt"],
    )


def _excerpt(connection: sqlite3.Connection, num: int | None) -> str:
    """Return the beginning of a turn's text; nothing of one that is not what was written."""
    query = "SELECT id, text, reasoning, parts FROM turns WHERE num = ?"
    row = connection.execute(query, (num,)).fetchone()
    if row is None or not has_its_text(row, row["parts"]):
        return ""
    return " ".join(row["text"][:_EXCERPT_LEN].split())


def _meanings(sessions: list[Session], reference: str) -> tuple[list[Session], ...]:
    """Return the candidates of each way to read a reference, the first way first."""
    folded = reference.casefold()
    by_id_prefix = len(reference) >= _MIN_ID_PREFIX
    return (
        [one for one in sessions if one.id == reference],
        [one for one in sessions if reference and one.title == reference],
        [one for one in sessions if by_id_prefix and one.id.startswith(folded)],
        [one for one in sessions if reference and one.title.casefold().startswith(folded)],
    )


def _ambiguous(reference: str, candidates: list[Session]) -> str:
    listed = "".join(f"\n  {one.id}  {one.title}" for one in candidates[:_MAX_LISTED])
    more = len(candidates) - _MAX_LISTED
    rest = f"\n  and {more} more" if more > 0 else ""
    return f"{reference!r} names {len(candidates)} sessions; use an id:{listed}{rest}"


def _not_found(reference: str, sessions: list[Session]) -> str:
    names = {one.title.casefold(): one.title for one in sessions if one.title}
    names.update((one.id, one.id) for one in sessions)
    close = get_close_matches(reference.casefold(), list(names), n=3, cutoff=0.5)
    if close:
        suggestions = " or ".join(repr(names[name]) for name in close)
        return f"there is no session {reference!r}; did you mean {suggestions}?"
    return f"there is no session {reference!r}; `kvchat sessions list` shows them all"
