"""Looking at sessions, naming them, and removing them with the blocks that are theirs alone."""

from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from kvchat.app.open_store import short_ids
from kvchat.app.retention.session_removal import SessionService
from kvchat.engine.memory.disk.cache_admin import CacheAdmin
from kvchat.session.store import SessionStore, new_turn_id
from kvchat.session.tree import Finish, Role, Session, Turn
from tests.cli.command_line import Run
from tests.cli.printed import Terminal, in_pipe, on_terminal
from tests.engine.memory import chains

pytestmark = [pytest.mark.pure, pytest.mark.long]


def add(
    store: SessionStore,
    session: Session,
    *texts: str,
    ids: Sequence[Sequence[int]] = (),
    finish: Finish = Finish.COMPLETE,
) -> None:
    """Append question and answer in turn to a session's active branch."""
    branch = store.branch(session.id, session.active_branch)
    for at, text in enumerate(texts):
        role = Role.USER if at % 2 == 0 else Role.ASSISTANT
        turn = Turn(
            id=new_turn_id(),
            session_id=session.id,
            parent_id=branch.leaf_id,
            role=role,
            text=text,
            token_ids=tuple(ids[at]) if ids else (at,),
            finish=finish if at == len(texts) - 1 else Finish.COMPLETE,
            created_at=float(at),
            fingerprint="" if role is Role.USER else chains.FINGERPRINT.hex(),
        )
        branch = store.add_turns(branch, (turn,))


def test_approximate_answers_are_told_in_every_listing(store: SessionStore, run: Run) -> None:
    session = store.create_session(title="Trip to Oslo")
    add(store, session, "By train?", "Yes.")
    branch = store.branch(session.id, session.active_branch)
    answer = store.turns_to(branch.leaf_id)[-1]
    store.add_turns(branch, (replace(answer, id=new_turn_id(), parent_id=answer.id, exact=False),))
    assert ", approximate)" in run.out("sessions")
    assert run.json("sessions", "list")[0]["exact"] is False
    assert run.out("sessions", "show", session.id).count("(approximate)") == 1


def test_sessions_are_listed_with_the_shortest_name_that_is_theirs(store: SessionStore, run: Run) -> None:
    session = store.create_session(title="Trip to Oslo")
    add(store, session, "By train?", "Yes.")
    line = run.out("sessions")
    assert line.startswith(session.id[:4] + " ")
    assert "Trip to Oslo  (2 turns, 2 tokens)" in line


def test_a_conversation_is_shown_by_title_prefix_or_id(store: SessionStore, run: Run) -> None:
    session = store.create_session(title="Trip to Oslo", system="Be brief.", model="starter")
    add(store, session, "By train?", "Yes.")
    for reference in ("Trip to Oslo", "trip", session.id, session.id[:4]):
        assert "system: Be brief.\n\nyou: By train?\n\nkvchat: Yes.\n" in run.out(
            "sessions", "show", reference
        )


def test_an_interrupted_answer_is_shown_with_the_way_to_go_on(store: SessionStore, run: Run) -> None:
    session = store.create_session(title="Trip")
    add(store, session, "By train?", "Yes, and", finish=Finish.INTERRUPTED)
    _, out, err = run("sessions", "show", "Trip")
    assert out.endswith("kvchat: Yes, and … (interrupted)\n")
    assert f"/continue in `kvchat resume {session.id}`" in err


def test_a_tree_shows_where_a_conversation_forks(store: SessionStore, run: Run) -> None:
    session = store.create_session(title="Trip")
    add(store, session, "How?", "By train.")
    first = store.branch(session.id, "main")
    add(store, session, "When?", "At noon.")
    branch = store.create_branch(session.id, leaf_id=first.leaf_id, name="boat")
    add(store, store.session(session.id), "And by boat?", "At night.")
    assert branch.name == "boat"
    assert run.out("sessions", "tree", "Trip").splitlines()[1:] == [
        "you: How?",
        "kvchat: By train.",
        "  you: When?",
        "  kvchat: At noon.  [main]",
        "  you: And by boat?",
        "  kvchat: At night.  [boat*]",
    ]


def test_nothing_that_was_said_steers_a_terminal_and_a_pipe_gets_it_as_it_was(store: SessionStore) -> None:
    said = "\x1b[2J\x1b]0;mine\x07 hi \x9b31m there\u202e"
    session = store.create_session(title="steers \x1b[31m")
    add(store, session, said, said)
    for words in (["sessions"], ["sessions", "tree"], ["sessions", "show"], ["sessions", "search", "there"]):
        named = [*words, session.id] if words[-1] in ("show", "tree") else words
        shown = "\n".join(on_terminal(120, *named))
        assert not {"\x1b", "\x07", "\x9b", "\u202e"} & {*shown}
        assert words == ["sessions"] or "hi" in shown
    assert said in "\n".join(in_pipe("sessions", "show", session.id))


def test_messages_are_found_by_words(store: SessionStore, run: Run) -> None:
    session = store.create_session(title="Trip")
    add(store, session, "How do I get to Oslo?", "By train.")
    assert run.out("sessions", "search", "oslo").startswith(f"{session.id}  Trip  you: How do I get")
    assert run.json("sessions", "search", "paris") == []


def test_a_session_is_renamed_but_not_to_a_name_that_is_taken(store: SessionStore, run: Run) -> None:
    session = store.create_session(title="Trip")
    store.create_session(title="other")
    assert run("sessions", "rename", "Trip", "Voyage")[0] == 0
    assert store.session(session.id).title == "Voyage"
    assert run("sessions", "rename", "Voyage", "other")[0] == 2


def test_removing_asks_on_a_terminal_and_takes_no_for_an_answer(
    store: SessionService, monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    store.create_session(title="Trip")
    monkeypatch.setattr("sys.stdin", Terminal("n\n"))
    assert "0 blocks of KV (0 B) would be freed" in run.err("sessions", "rm", "Trip", code=1)
    monkeypatch.setattr("sys.stdin", Terminal("y\n"))
    assert run("sessions", "rm", "Trip")[0] == 0
    assert store.list_sessions() == ()


def test_removing_frees_the_blocks_of_a_session_and_keeps_those_that_others_share(
    store: SessionService, home: Path, run: Run
) -> None:
    kept_ids, gone_ids, foreign_ids = [1, 2, 3, 4, 5], [1, 2, 3, 4, 50, 60, 70, 80, 90], [7, 7, 7, 7]
    for title, ids in (("kept", kept_ids), ("gone", gone_ids)):
        add(store, store.create_session(title=title), "q", "a", ids=[ids[:2], ids[2:]])
    disk = chains.open_store(home / "cache")
    gone_only = chains.chain(gone_ids)[1:]
    chains.write_all(disk, [*chains.chain(kept_ids), *gone_only, *chains.chain(foreign_ids)])
    disk.close()

    before = store.would_remove([store.find("gone").id])
    removed = run.json("sessions", "rm", "gone")
    assert asdict(before).items() <= removed.items()
    assert (removed["freed_blocks"], removed["shared_blocks"]) == (2, 1)
    assert removed["freed_bytes"] > 0
    with closing(CacheAdmin(home / "cache")) as admin:
        left = sorted(block.token_ids for block in admin.blocks())
    assert left == [(1, 2, 3, 4), (5,), (7, 7, 7, 7)]
    assert [summary.session.title for summary in store.list_sessions()] == ["kept"]


def test_removing_says_what_was_freed_and_what_stays(store: SessionStore, home: Path, run: Run) -> None:
    for title in ("one", "two"):
        add(store, store.create_session(title=title), "q", "a", ids=[[1, 2], [3, 4]])
    chains.put_blocks(home / "cache", chains.chain([1, 2, 3, 4]))
    assert "freed 0 blocks, 0 B; 1 block, " in run.err("sessions", "rm", "one")
    assert "freed 1 block, " in run.err("sessions", "rm", "two")


def test_a_short_name_is_as_long_as_it_must_be() -> None:
    ids = ["zzzzzzzz", "abcdzzzz", "abcdefgh", "abcdefgz", "abceeeee"]
    assert [*short_ids(ids).items()] == [
        ("abcdefgh", "abcdefgh"),
        ("abcdefgz", "abcdefgz"),
        ("abcdzzzz", "abcdz"),
        ("abceeeee", "abce"),
        ("zzzzzzzz", "zzzz"),
    ]


def test_a_branch_is_removed_alone_with_what_no_other_branch_has(
    store: SessionService, home: Path, run: Run
) -> None:
    """What it shares with another branch stays, in text and in KV."""
    session = store.create_session(title="Trip")
    shared, own, others = [1, 2, 3, 4], [50, 60, 70, 80], [9, 9, 9, 9]
    add(store, session, "Where to?", "To Oslo.", ids=[shared[:2], shared[2:]])
    main = store.branch(session.id, "main")
    store.create_branch(session.id, leaf_id=main.leaf_id, name="by boat")
    add(store, store.session(session.id), "By boat?", "Yes.", ids=[own[:2], own[2:]])
    main_session = replace(store.session(session.id), active_branch=main.name)
    add(store, main_session, "By train?", "No.", ids=[others[:2], others[2:]])
    chains.put_blocks(home / "cache", [*chains.chain(shared + own), *chains.chain(shared + others)[1:]])

    said = run.json("sessions", "rm", "Trip", "--branch", "by boat")
    assert (said["branch"], said["num_turns"], said["num_shared_turns"]) == ("by boat", 2, 2)
    assert (said["freed_blocks"], said["shared_blocks"]) == (1, 1)
    assert [branch.name for branch in store.branches(session.id)] == ["main"]
    assert store.session(session.id).active_branch == "main"
    texts = [turn.text for turn in store.all_turns(session.id)]
    assert texts == ["Where to?", "To Oslo.", "By train?", "No."]
    assert store.search("boat") == ()
    with closing(CacheAdmin(home / "cache")) as admin:
        assert {block.token_ids for block in admin.blocks()} == {tuple(shared), tuple(others)}


def test_the_only_branch_an_unknown_one_or_one_of_several_sessions_is_not_removed(
    store: SessionService, run: Run
) -> None:
    session = store.create_session(title="Trip")
    add(store, session, "q", "a")
    store.create_session(title="Other")
    assert "only branch" in run.err("sessions", "rm", "Trip", "--branch", "main", "-y", code=2)
    assert run("sessions", "rm", "Trip", "--branch", "nobody", "-y")[0] == 5
    assert run("sessions", "rm", "Trip", "Other", "--branch", "main", "-y")[0] == 2
    assert len(store.all_turns(session.id)) == 2


def test_removing_a_branch_asks_and_says_what_is_shared(
    store: SessionService, monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    session = store.create_session(title="Trip")
    add(store, session, "q", "a")
    store.create_branch(session.id, leaf_id=store.branch(session.id, "main").leaf_id, name="beside")
    monkeypatch.setattr("sys.stdin", Terminal("n\n"))
    asked = run.err("sessions", "rm", "Trip", "--branch", "beside", code=1)
    assert "0 messages would be gone for good; 2 messages stay, since other branches share them" in asked
    monkeypatch.setattr("sys.stdin", Terminal("y\n"))
    assert run("sessions", "rm", "Trip", "--branch", "beside")[0] == 0
    assert len(store.branches(session.id)) == 1
