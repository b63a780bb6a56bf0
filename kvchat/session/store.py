"""Session store: one SQLite database of sessions, branches, turns and their token ids.

Any number of threads and processes may use one database. A branch is moved by compare-and-set on its leaf:
the second writer gets a branch of its own, so nothing is overwritten or interleaved. An answer grows in small
pieces, which are folded into its turn when it ends. An answer whose writer died (see `writers`) reads as
interrupted, with every piece that was stored.
"""

import sqlite3
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from time import time

from kvchat.engine.api.ids import u32le
from kvchat.errors import SessionNotFound, UsageError
from kvchat.platform.encryptor import Encryptor
from kvchat.platform.writer_liveness import Writers
from kvchat.session import session_queries, timestamp_limits
from kvchat.session.database import rows, silent_damage, statements
from kvchat.session.database.database import Database, MemoryDatabase
from kvchat.session.database.turn_reader import TurnReader
from kvchat.session.encryption.tables import tables_of
from kvchat.session.salvage.salvage import SalvageReport
from kvchat.session.session_queries import SearchHit, SessionSummary
from kvchat.session.tree import (
    MAIN,
    Branch,
    BranchName,
    BranchRemoval,
    Finish,
    Role,
    Session,
    SessionId,
    Turn,
    TurnId,
    Verification,
    plan_removal,
)
from kvchat.session.tree import Outcome as Outcome
from kvchat.session.unsent_drafts import DraftStore

_OUTLINE = """
    SELECT id, parent_id, coalesce(length(token_ids), 0) / 4 AS num_tokens FROM turns WHERE session_id = ?
"""


class SessionStore:
    """All sessions of one person.

    Args:
        path: the database file, made with missing directories for their owner alone; None: all in memory.
        encryptor: what the rows are encrypted with; None: they are in the clear.

    Raises: StorageError: from every method, when the file cannot be read or written; it says what to do.
    """

    def __init__(self, path: Path | None, encryptor: Encryptor | None = None) -> None:
        database = MemoryDatabase() if path is None else Database(path, tables_of(encryptor))
        self._writers = Writers(None if path is None else path.parent / "writers")
        self._database, self._reader = database, TurnReader(self._writers)
        self.path = database.path
        self._numbered: set[tuple[SessionId, BranchName]] = set()
        self.unsent = DraftStore(None if path is None else path.parent / "unsent", encryptor)

    def close(self) -> None:
        self._database.close()
        self._writers.close()

    # What is stored

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

    def all_turns(self, session_id: SessionId) -> tuple[Turn, ...]:
        """Return every turn of a session, a parent before its children."""
        with self._database.read() as connection:
            found = connection.execute("SELECT * FROM turns WHERE session_id = ? ORDER BY num", (session_id,))
            turns = self._reader.turns(connection, found)
            silent_damage.refuse_hidden_turns(connection, session_id, turns)
            return turns

    # Sessions

    def create_session(
        self, *, title: str = "", system: str = "", model: str = "", began_at: float | None = None
    ) -> Session:
        """Create a session with one empty branch, `main`. An untitled one is titled by its first message.

        Raises:
            SessionExists: the title is taken.
        """
        title = statements.one_line(title)
        with self._database.write() as connection:
            now = statements.next_timestamp(connection)
            session = Session(
                id=new_session_id(),
                title=title,
                system=rows.storable(system),
                model=model,
                # Order may count on ahead of the clock; what templates tell the model may not.
                created_at=min(now, time()) if began_at is None else began_at,
                updated_at=now,
            )
            statements.refuse_taken_title(connection, title)
            statements.insert_session(connection, session)
            main = Branch(session_id=session.id, name=MAIN, leaf_id=None, updated_at=now)
            statements.add_branch(connection, main)
        return session

    def adopt(self, session: Session, branches: Sequence[Branch], turns: Sequence[Turn]) -> Session:
        """Add a whole session from elsewhere, all or nothing, and return it as stored.

        Args:
            session: its id is new; a title that is taken gets a number. Moments ahead become the present.
            turns: finished ones with new ids, a parent before its children.
        """
        return self.adopt_all([(session, branches, turns)])[0]

    def adopt_all(
        self, sessions: Iterable[tuple[Session, Sequence[Branch], Sequence[Turn]]]
    ) -> Sequence[Session]:
        """Add several sessions as `adopt` does: all of them or none."""
        with self._database.write() as connection:
            return [_adopted(connection, *one) for one in sessions]

    def mark_verified(self, session_id: SessionId, verification: Verification, namespace: str) -> None:
        """Note what was found of a session's KV, and whose blocks it uses from now on."""
        with self._database.write() as connection:
            found = rows.verification_json(verification)
            statements.change_session(connection, session_id, verified=found, namespace=namespace)

    def use_blocks_of(self, session_id: SessionId, namespace: str) -> None:
        """Note whose blocks a session uses from now on."""
        with self._database.write() as connection:
            statements.change_session(connection, session_id, namespace=namespace)

    def note_adapter(self, session_id: SessionId, adapter: str) -> None:
        """Note the directory of the LoRA that a session is computed with from now on; empty for none."""
        with self._database.write() as connection:
            statements.change_session(connection, session_id, adapter=adapter)

    def rename(self, session_id: SessionId, title: str) -> Session:
        """Give a session another title.

        Raises:
            SessionExists: another session has it.
        """
        title = statements.one_line(title)
        if not title:
            raise UsageError("a title needs at least one visible character")
        with self._database.write() as connection:
            session = statements.session(connection, session_id)
            if title != session.title:
                statements.refuse_taken_title(connection, title)
            statements.change_session(connection, session_id, title=title)
        return replace(session, title=title)

    def pin(self, session_id: SessionId, *, is_pinned: bool) -> None:
        """Keep a session at the top of the list, or no longer."""
        with self._database.write() as connection:
            statements.change_session(connection, session_id, pinned=int(is_pinned))

    def delete_session(self, session_id: SessionId) -> None:
        """Delete a session with all its turns. Its blocks stay until they are collected."""
        self.delete_sessions([session_id])

    def delete_sessions(self, doomed: Iterable[SessionId]) -> None:
        """Delete sessions one after another; see `delete_session` and `still_readable`."""
        num_said = num_bare = 0
        try:
            for session_id in doomed:
                is_bare = self._is_bare(session_id)
                num_bare, num_said = num_bare + is_bare, num_said + (not is_bare)
                with self._database.write() if is_bare else self._database.delete() as connection:
                    statements.delete_session(connection, session_id)
                self.unsent.forget(session_id)
        finally:
            if num_said:
                self.erase_deleted()
            elif num_bare:
                self._database.empty_log()

    def erase_deleted(self) -> None:
        """Take what was deleted and withdrawn out of every file, as far as that can be done now. O(all)."""
        self._database.erase(is_writing=bool(self._reader.writing))

    def still_readable(self) -> Sequence[str]:
        """Return in which files deleted words may still be read, each with what to do about it."""
        return self._database.remains()

    @property
    def salvaged(self) -> SalvageReport | None:
        """What was found when this process replaced a damaged file; None: it has not."""
        return self._database.salvaged

    def restore(self) -> bool:
        """Replace a file that was found to be damaged by what can be read of it; see `Database.restore`."""
        return self._database.restore()

    def take_notices(self) -> tuple[str, ...]:
        """Return what a person should know of what was stored since the last call."""
        return ()

    # Branches

    def create_branch(
        self, session_id: SessionId, *, leaf_id: TurnId | None, name: str = "", beside: str = MAIN
    ) -> Branch:
        """Create a branch that ends with a turn and make it the active one.

        Args:
            name: its name; empty: that of `beside` with the next free number, as in `main-2`, until this
                store adds a message to it, by whose first words it is called from then on.

        Raises: UsageError: the name is taken.
        """
        name = statements.one_line(name)
        with self._database.write() as connection:
            taken = statements.branch_names(connection, session_id)
            if name in taken:
                raise UsageError(f"this session has a branch {name!r} already; choose another name")
            branch = Branch(
                session_id=session_id,
                name=BranchName(name or statements.free_name(beside, taken)),
                leaf_id=leaf_id,
                updated_at=statements.next_timestamp(connection),
            )
            statements.insert_branch(connection, branch)
        if not name:
            self._numbered.add((session_id, branch.name))
        return branch

    def set_leaf(self, branch: Branch, leaf_id: TurnId | None) -> Branch:
        """Move a branch to another leaf, or make a new branch there if someone else has moved it since."""
        with self._database.write() as connection:
            return statements.move(connection, branch, leaf_id)

    def delete_branch(self, branch: Branch, successor: Branch, turn_ids: Sequence[TurnId] = ()) -> None:
        """Delete a branch's name and make another the active one.

        Args:
            turn_ids: turns that go with it, which no other branch may have; the others stay.

        Raises:
            StorageError: somebody rests on one of them by now; nothing was changed.
        """
        with self._database.delete() if turn_ids else self._database.write() as connection:
            connection.execute(
                "DELETE FROM branches WHERE session_id = ? AND name = ?", (branch.session_id, branch.name)
            )
            for turn_id in turn_ids:
                connection.execute("DELETE FROM turns WHERE id = ?", (turn_id,))
            statements.change_session(connection, branch.session_id, active_branch=successor.name)
        if turn_ids:
            self.erase_deleted()

    def remove_branch(self, session_id: SessionId, name: str) -> object:
        """Delete a branch with the messages that no other branch has."""
        plan = self.removal_of(session_id, name)
        self.delete_branch(plan.branch, plan.successor, [turn.id for turn in plan.doomed])
        return plan

    # Turns

    def add_turns(self, branch: Branch, turns: Sequence[Turn]) -> Branch:
        """Append turns to a branch, all or none, and return the branch that holds them.

        The first turn's parent is the leaf that the caller saw. If the branch has another leaf by now, the
        turns go to a new branch beside it. A PARTIAL turn belongs to this store until it is finished or
        abandoned.
        """
        unfinished = {turn.id for turn in turns if turn.finish is Finish.PARTIAL}
        writer = self._writer() if unfinished else ""
        # Before the turns can be seen: a reader must not take them for a dead writer's.
        self._reader.writing |= unfinished
        with self._database.write() as connection:
            session = statements.session(connection, branch.session_id)
            for turn in turns:
                statements.insert_turn(connection, turn, writer)
            if not session.title:
                title = statements.title_of(turns[0].text)
                statements.change_session(connection, branch.session_id, title=title)
            moved = statements.move(connection, branch, turns[-1].id)
            if turns[0].role is Role.USER and (branch.session_id, branch.name) in self._numbered:
                moved = statements.name_branch(connection, moved, turns[0].text)
        if moved.name != branch.name:
            self._numbered.discard((branch.session_id, branch.name))
        return moved

    def add_answers(self, turns: Sequence[Turn]) -> None:
        """Store answers that begin to grow side by side; no branch leads to them yet."""
        writer = self._writer()
        self._reader.writing |= {turn.id for turn in turns}
        with self._database.write() as connection:
            for turn in turns:
                statements.insert_turn(connection, turn, writer)

    def withdraw(self, branch: Branch, leaf_id: TurnId | None, turn_ids: Sequence[TurnId]) -> Branch:
        """Take back turns that nothing hangs on, and put the branch back where it was; a title that the first
        message of a session gave it goes with that.

        Effect: their words are erased when something else is deleted, or this store is closed.
        """
        with self._database.delete() if turn_ids else self._database.write() as connection:
            moved = statements.move(connection, branch, leaf_id)
            if leaf_id is None and turn_ids:
                statements.forget_title_of(connection, turn_ids[0])
            for turn_id in reversed(turn_ids):
                connection.execute("DELETE FROM turns WHERE id = ?", (turn_id,))
        self._reader.writing -= set(turn_ids)
        return moved

    def mark_answer(self, turn_id: TurnId, *, model: str, fingerprint: str, exact: bool = True) -> None:
        """Say which model writes an answer, and on which KV; known only once the engine is loaded.

        An answer of which any part was approximate stays so.
        """
        with self._database.write() as connection:
            statements.mark_turn(connection, turn_id, model=model, fingerprint=fingerprint, exact=exact)

    def append_to_answer(
        self, turn_id: TurnId, token_ids: Sequence[int], text: str, reasoning: str = ""
    ) -> None:
        """Add what an unfinished answer has grown by, in one transaction. Cost: the piece, not the answer.

        Raises:
            SessionNotFound: the session was deleted meanwhile.
        """
        with self._database.write(durable=False) as connection:
            if not statements.add_piece(connection, turn_id, u32le(token_ids), text, reasoning):
                raise SessionNotFound("the session was deleted while it was being answered")

    def finish_answer(self, turn_id: TurnId, outcome: Outcome) -> Turn:
        """End an answer: fold its pieces into the turn and return it as stored."""
        with self._database.write() as connection:
            grown = self._reader.turn(connection, turn_id)
            turn = replace(
                grown,
                finish=outcome.finish,
                usage=outcome.usage,
                loaded=outcome.loaded,
                timings=outcome.timings,
                backend=outcome.backend or grown.backend,
                stored=outcome.stored,
            )
            statements.fold(connection, turn)
        self._reader.writing.discard(turn_id)
        return turn

    def abandon_answer(self, turn_id: TurnId) -> None:
        """Stop writing an answer that could not be finished; it reads as interrupted from now on."""
        self._reader.writing.discard(turn_id)

    def reopen_answer(self, branch: Branch, turn_id: TurnId) -> tuple[Branch, Turn]:
        """Make an answer that ended early grow again, and return its branch and the turn that grows.

        If another branch or a later turn rests on the answer, a copy beside it grows instead.

        Raises:
            UsageError: the answer is complete, or is being written elsewhere.
        """
        writer = self._writer()
        with self._database.write() as connection:
            turn = self._reader.turn(connection, turn_id)
            if turn.finish is Finish.PARTIAL or not turn.is_open:
                raise UsageError("only an answer that was cut short can be continued; ask again, or retry it")
            if statements.is_shared(connection, branch, turn_id):
                turn = replace(turn, id=new_turn_id(), created_at=time())
                statements.insert_turn(connection, turn, "")
                branch = statements.move(connection, branch, turn.id)
            self._reader.writing.add(turn.id)
            turn = replace(turn, finish=Finish.PARTIAL)
            statements.change_turn(connection, turn, writer)
        return branch, turn

    def repair(self, turn: Turn) -> Turn | None:
        """Store a damaged turn whose broken parts were rebuilt, and return it as stored.

        Args:
            turn: with the rebuilt parts in place, and `broken` as it was read.

        Returns: None if what was rebuilt is not what was written; nothing was changed.
        """
        with self._database.write() as connection:
            if not statements.agrees(connection, turn):
                return None
            mended = replace(turn, damaged=False, broken=frozenset(), repaired=True)
            statements.fold(connection, mended)
        return mended

    def settle(self, session_id: SessionId) -> int:
        """Store as interrupted what dead writers left unfinished, and return how many answers that were."""
        with self._database.read() as connection:
            left = self._reader.left_unfinished(connection, session_id)
        if not left:
            return 0
        with self._database.write() as connection:
            left = self._reader.left_unfinished(connection, session_id)
            for turn in left:
                statements.fold(connection, turn)
        return len(left)

    def _is_bare(self, session_id: SessionId) -> bool:
        """Whether nothing was ever said in a session, and no copy can hold its title."""
        with self._database.read() as connection:
            session = statements.session(connection, session_id)
            query = "SELECT 1 FROM turns WHERE session_id = ? LIMIT 1"
            is_empty = connection.execute(query, (session_id,)).fetchone() is None
        return is_empty and not self._database.may_be_copied(session.created_at)

    def _writer(self) -> str:
        with self._database.read():
            return self._writers.own_id()


def _adopted(
    connection: sqlite3.Connection, session: Session, branches: Sequence[Branch], turns: Sequence[Turn]
) -> Session:
    session, branches, turns = timestamp_limits.not_ahead(session, branches, turns)
    title = statements.free_title(connection, statements.one_line(session.title))
    session = replace(session, title=title, system=rows.storable(session.system))
    statements.insert_session(connection, session)
    for turn in turns:
        statements.insert_turn(connection, turn, "")
    for branch in branches:
        statements.add_branch(connection, branch)
    return session


def new_session_id() -> SessionId:
    return SessionId(statements.random_id(8))


def new_turn_id() -> TurnId:
    return TurnId(statements.random_id(12))
