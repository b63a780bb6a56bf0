"""Session reader: stored sessions, their branches and their turns, read-only."""

from kvchat.errors import SessionNotFound
from kvchat.session import session_queries
from kvchat.session.branch_removal_plan import BranchRemoval, plan_removal
from kvchat.session.database import rows, silent_damage, statements
from kvchat.session.database.database import Database
from kvchat.session.database.turn_reader import TurnReader
from kvchat.session.session_queries import SearchHit, SessionSummary
from kvchat.session.tree import Branch, Session, SessionId, Turn, TurnId

_OUTLINE = """
    SELECT id, parent_id, coalesce(length(token_ids), 0) / 4 AS num_tokens FROM turns WHERE session_id = ?
"""


class SessionReader:
    """The reading half of a store of sessions.

    Raises: StorageError: from every method, when the file cannot be read; it says what to do.
    """

    def __init__(self, database: Database, reader: TurnReader) -> None:
        self._database = database
        self._reader = reader

    # Sessions

    def session(self, session_id: SessionId) -> Session:
        with self._database.read() as connection:
            return statements.session(connection, session_id)

    def find(self, reference: str) -> Session:
        """Return the session a person means: by id, exact title, unique id prefix or title prefix.

        An id prefix needs 4 characters.

        Raises:
            SessionNotFound: none; the message suggests similar ones.
            SessionAmbiguous: several; the message lists them.
        """
        with self._database.read() as connection:
            return session_queries.find(connection, reference)

    def list_sessions(self) -> tuple[SessionSummary, ...]:
        """Return all sessions, last used first."""
        with self._database.read() as connection:
            return session_queries.summaries(connection)

    def interrupted(self) -> tuple[Session, ...]:
        """Return the sessions with an answer whose writer died and that nobody has opened since, last used
        first.
        """
        with self._database.read() as connection:
            found = connection.execute(session_queries.UNFINISHED).fetchall()
            left = [row["id"] for row in found if self._reader.left_unfinished(connection, row["id"])]
            return tuple(statements.session(connection, session_id) for session_id in left)

    def search(self, text: str, limit: int = 50) -> tuple[SearchHit, ...]:
        """Return the turns that hold every word of `text` (each may be the start of a word), best first."""
        with self._database.search() as connection:
            return session_queries.search(connection, text, limit)

    def recent_questions(self, limit: int = 500) -> tuple[str, ...]:
        """Return what was asked last, over all sessions, oldest first."""
        with self._database.read() as connection:
            return session_queries.recent_questions(connection, limit)

    def version(self) -> tuple[int, int]:
        """Return two numbers of which the first changes when another connection has written, the second when
        this one has.
        """
        with self._database.read() as connection:
            (others,) = connection.execute("PRAGMA data_version").fetchone()
            return others, connection.total_changes

    # Branches

    def branches(self, session_id: SessionId) -> tuple[Branch, ...]:
        """Return the branches of a session, last used first."""
        with self._database.read() as connection:
            found = connection.execute(
                "SELECT * FROM branches WHERE session_id = ? ORDER BY updated_at DESC, name", (session_id,)
            )
            branches = tuple(rows.branch_of(row) for row in found)
            silent_damage.refuse_hidden(connection, "branches", "session_id", session_id, len(branches))
            return branches

    def branch(self, session_id: SessionId, name: str) -> Branch:
        """Return a branch by its name.

        Raises:
            SessionNotFound: the session has no such branch; the message names those it has.
        """
        branches = self.branches(session_id)
        for branch in branches:
            if branch.name == name:
                return branch
        known = ", ".join(branch.name for branch in branches) or "none"
        raise SessionNotFound(f"this session has no branch {name!r}; its branches: {known}")

    def branch_through(self, turn_id: TurnId) -> Branch | None:
        """Return the branch used last of those that a turn lies on; None if none leads there any more."""
        with self._database.read() as connection:
            below = session_queries.turns_below(connection, turn_id)
            session_id = self._reader.turn(connection, turn_id).session_id
        return next((branch for branch in self.branches(session_id) if branch.leaf_id in below), None)

    def path_holds(self, leaf_id: TurnId | None, turn_id: TurnId) -> bool:
        """Return whether a turn lies on the path to a leaf."""
        with self._database.read() as connection:
            return leaf_id is not None and leaf_id in session_queries.turns_below(connection, turn_id)

    def removal_of(self, session_id: SessionId, name: str) -> BranchRemoval:
        """Return what removing a branch would mean; raises as `branch` and `plan_removal`."""
        branches, active = self.branches(session_id), self.session(session_id).active_branch
        return plan_removal(self.branch(session_id, name), branches, self.all_turns(session_id), active)

    # Turns

    def turn(self, turn_id: TurnId) -> Turn:
        """Return a turn by its id.

        Raises:
            SessionNotFound: there is none.
        """
        with self._database.read() as connection:
            return self._reader.turn(connection, turn_id)

    def turns_to(self, leaf_id: TurnId | None) -> tuple[Turn, ...]:
        """Return the path from the root to a turn, that turn last; empty for None."""
        if leaf_id is None:
            return ()
        with self._database.read() as connection:
            turns = self._reader.turns(connection, statements.path_to(connection, leaf_id))
            silent_damage.refuse_gaps(connection, turns, (leaf_id,))
            return turns

    def outline(self, session_id: SessionId) -> dict[TurnId, tuple[TurnId | None, int]]:
        """Return the parent and the number of tokens of each turn, without reading what it says."""
        with self._database.read() as connection:
            found = connection.execute(_OUTLINE, (session_id,))
            return {row["id"]: (row["parent_id"], row["num_tokens"]) for row in found}

    def children(self, turn_id: TurnId) -> tuple[Turn, ...]:
        with self._database.read() as connection:
            found = connection.execute("SELECT * FROM turns WHERE parent_id = ? ORDER BY num", (turn_id,))
            return self._reader.turns(connection, found)

    def all_turns(self, session_id: SessionId) -> tuple[Turn, ...]:
        """Return every turn of a session, a parent before its children."""
        with self._database.read() as connection:
            found = connection.execute("SELECT * FROM turns WHERE session_id = ? ORDER BY num", (session_id,))
            turns = self._reader.turns(connection, found)
            silent_damage.refuse_hidden_turns(connection, session_id, turns)
            return turns
