"""A small home of conversations, kept as bytes: put back, damaged, and looked at in every way."""

import shutil
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from kvchat.session import digest_repair
from kvchat.session.store import Outcome, SessionStore
from kvchat.session.template import prompts
from kvchat.session.template.chat_template import ChatTemplate
from kvchat.session.tree import MAIN, Branch, Finish, Session, SessionId, Turn, TurnId
from tests.session.turns import exchange

DATABASE = Path("sessions.db")
LOG = Path("sessions.db-wal")


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """Everything that a store says."""

    sessions: Mapping[SessionId, Session]
    turns: Mapping[TurnId, Turn]
    paths: Mapping[tuple[SessionId, str], tuple[Turn, ...]]


def write_home(
    place: Path, template: ChatTemplate, *, has_short_log: bool = False, has_scar: bool = False
) -> None:
    """Write two conversations: one with a fork whose answer was cut off, one that nobody has named.

    The newest part of the first is in the write-ahead log alone, as after a process was killed: a message and
    what was there of its answer, or of a short log the answer's words. A scar is a turn that was damaged
    before, which the database keeps as such.
    """
    store = SessionStore(place / DATABASE)
    session = store.create_session(title="demo", system="Be kind.", model="starter")
    branch = store.branch(session.id, MAIN)
    branch = _ask(store, template, branch, "What is a KV cache?", "It stores keys and values.")
    fork = store.create_branch(session.id, leaf_id=branch.leaf_id, name="by boat")
    _ask(store, template, branch, "Greetings from Oslo!", "Hello! My name is Ana.")
    other = store.create_session()
    _ask(store, template, store.branch(other.id, MAIN), "What is a KV cache?", "It stores keys and values.")
    if has_scar:
        with store._database.write() as connection:
            connection.execute(
                "UPDATE turns SET digest = x'', parts = x'' WHERE num = (SELECT max(num) FROM turns)"
            )
    if not has_short_log:
        _empty_log(store)
    _, answer = _begin(store, template, fork, "And now?")
    if has_short_log:
        _empty_log(store)
    _go_on(store, template, answer, "It goes on")
    _end_as_if_killed(store, place)


def write_home_with_free_pages(place: Path, template: ChatTemplate) -> None:
    """Write a conversation whose answer took pages while it grew, and in the log alone that it is pinned."""
    store = SessionStore(place / DATABASE)
    session = store.create_session()
    ids = template.tokenizer.encode("It stores keys and values. " * 5)
    text = template.tokenizer.decode(ids)
    _, answer = _begin(store, template, store.branch(session.id, MAIN), "Tell me a story.")
    for _ in range(60):
        store.append_to_answer(answer.id, ids, text)
    store.finish_answer(answer.id, Outcome(finish=Finish.COMPLETE))
    with store._database.read() as connection:
        assert connection.execute("PRAGMA freelist_count").fetchone()[0] > 3
    _empty_log(store)
    store.pin(session.id, is_pinned=True)
    _end_as_if_killed(store, place)


def _end_as_if_killed(store: SessionStore, place: Path) -> None:
    shutil.copyfile(place / LOG, place / "log")
    shutil.copyfile(place / DATABASE, place / "database")
    store.close()
    (place / "log").replace(place / LOG)
    (place / "database").replace(place / DATABASE)


def _empty_log(store: SessionStore) -> None:
    with store._database.read() as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def _ask(store: SessionStore, template: ChatTemplate, branch: Branch, text: str, reply: str) -> Branch:
    branch, answer = _begin(store, template, branch, text)
    _go_on(store, template, answer, reply)
    store.finish_answer(answer.id, Outcome(finish=Finish.COMPLETE))
    return branch


def _begin(store: SessionStore, template: ChatTemplate, branch: Branch, text: str) -> tuple[Branch, Turn]:
    session, path = store.session(branch.session_id), store.turns_to(branch.leaf_id)
    asked = prompts.question(template, session, path, text)
    answer = prompts.empty_answer(template, asked)
    return store.add_turns(branch, (asked, answer)), answer


def _go_on(store: SessionStore, template: ChatTemplate, answer: Turn, reply: str) -> None:
    """Write an answer in two pieces."""
    ids = template.tokenizer.encode(reply)
    begun = template.tokenizer.decode(ids[:2])
    store.append_to_answer(answer.id, ids[:2], begun)
    store.append_to_answer(answer.id, ids[2:], reply.removeprefix(begun))


def read_home(place: Path) -> dict[Path, bytes]:
    """Return all files that a person's disk would hold after a kill: no locks, no shared memory."""
    files = (path for path in place.rglob("*") if path.is_file() and path.suffix != ".lock")
    return {path.relative_to(place): path.read_bytes() for path in files if not path.name.endswith("-shm")}


def put_home(place: Path, files: Mapping[Path, bytes]) -> None:
    """Put files in the place of all that is there."""
    shutil.rmtree(place, ignore_errors=True)
    for path, data in files.items():
        (place / path).parent.mkdir(parents=True, exist_ok=True)
        (place / path).write_bytes(data)


def look(place: Path, template: ChatTemplate) -> Seen:
    """Read everything in every way that chat, lists and exports do; paths are repaired as they are opened."""
    with closing(SessionStore(place / DATABASE)) as store:
        sessions = {one.session.id: one.session for one in store.list_sessions()}
        paths = {}
        turns: dict[TurnId, Turn] = {}
        for session in sessions.values():
            for branch in store.branches(session.id):
                path = store.turns_to(branch.leaf_id)
                paths[session.id, str(branch.name)] = digest_repair.mend(store, template, session, path)
            numbers = {turn.id: number for number, turn in enumerate(store.all_turns(session.id))}
            turns |= {turn.id: turn for turn in store.all_turns(session.id)}
            assert all(
                turns[name].parent_id is None or numbers[turns[name].parent_id] < at
                for name, at in numbers.items()
            ), "a parent stands before its children"
        store.search("goes")
        return Seen(sessions=sessions, turns=turns, paths=paths)


def go_on(place: Path) -> None:
    """Use every session once more, and a new one."""
    with closing(SessionStore(place / DATABASE)) as store:
        for one in store.list_sessions():
            branch = store.branch(one.session.id, one.session.active_branch)
            leaf_id = exchange(store, branch, "More?", "Yes.").leaf_id
            assert [turn.text for turn in store.turns_to(leaf_id)[-2:]] == ["More?", "Yes."]
        session = store.create_session()
        exchange(store, store.branch(session.id, MAIN), "Is it well?", "It is.")
        assert len(store.all_turns(session.id)) == 2
