"""Revisions of a conversation from the command line: what they cost is said before, and it is so."""

import io
from pathlib import Path

import pytest

from kvchat.session.store import SessionStore
from kvchat.session.tree import Role
from tests.cli.command_line import Run
from tests.session.turns import exchange


def branches(store: SessionStore) -> dict[str, list[str]]:
    """Return the questions on each branch of the one session."""
    (summary,) = store.list_sessions()
    return {
        branch.name: [turn.text for turn in store.turns_to(branch.leaf_id) if turn.role is Role.USER]
        for branch in store.branches(summary.session.id)
    }


@pytest.mark.pure
def test_a_fork_begins_at_the_end_or_at_any_message_and_is_active_from_then_on(
    store: SessionStore, run: Run
) -> None:
    session = store.create_session(title="Trip")
    first = exchange(store, store.branch(session.id, "main"), "How?", "By train.")
    exchange(store, first, "When?", "At noon.")
    assert run.json("sessions", "fork", "trip", "boat")["branch"] == "boat"
    made = run.json("sessions", "fork", "trip", "--at", str(first.leaf_id), "--branch", "main")
    assert made == {"session": session.id, "branch": "main-2", "leaf": first.leaf_id}
    assert store.session(session.id).active_branch == "main-2"
    assert branches(store) == {"main": ["How?", "When?"], "boat": ["How?", "When?"], "main-2": ["How?"]}
    assert run("sessions", "fork", "trip", "boat")[0] == 2
    assert run("sessions", "fork", "trip", "--at", "nothing")[0] == 2
    assert run("sessions", "fork", "nobody")[0] == 5


@pytest.mark.cpu
@pytest.mark.usefixtures("loading_pays")
def test_undo_drop_and_edit_cost_what_they_say_and_keep_the_branch_as_it_was(
    tiny_model: Path, store: SessionStore, run: Run
) -> None:
    model = ["-m", str(tiny_model)]
    ask = ["ask", *model, "--max-tokens", "6", "-s", "demo"]
    run.json(*ask[:-2], "--new", "demo", "one " * 60)
    for text in ("two " * 9, "three"):
        run.json(*ask, text)
    said = branches(store)["main"]

    plan = run.json("sessions", "drop", *model, "demo", "2", "--dry-run")
    assert (plan["done"], plan["dropped_turns"], plan["following_turns"]) == (False, 2, 2)
    assert branches(store) == {"main": said}
    assert 0 < plan["computed_tokens"] < plan["reused_tokens"]
    done = run.json("sessions", "drop", *model, "demo", "2", "-y")
    assert (done["branch"], done["stays_on"]) == ("main-2", "main")
    assert (done["computed_tokens"], done["reused_tokens"]) == (
        plan["computed_tokens"],
        plan["reused_tokens"],
    )
    usage = run.json(*ask, "four")["usage"]
    assert usage["cached_tokens"] == plan["reused_tokens"]
    assert branches(store) == {"main": said, "main-2": [said[0], said[2], "four"]}

    why = run.json("cache", "why", "demo")
    assert (why["culprit"], why["cached_tokens"]) == ("different", plan["reused_tokens"])
    assert why["shared_text"].endswith("<|user|>t")
    assert why["here_text"].startswith("hree<|end|>")
    assert why["there_text"].startswith("wo two")
    assert run.json("cache", "why", "demo", "--branch", "main")["culprit"] == "none"
    assert run("cache", "why", "demo", "9")[0] == 2

    assert run.json("sessions", "undo", *model, "demo", "2")["computed_tokens"] == 0
    assert branches(store)["main-3"] == [said[0]]
    code, _, err = run(*ask, "--edit", "1", "five")
    assert code == 0, err
    promised, _, cost = err.partition("\n")
    computed = promised.split(" token")[0].removeprefix("computes ")
    assert f"computed {computed} " in cost
    assert branches(store)["five"] == ["five"]
    assert branches(store)["main"] == said


@pytest.mark.pure
def test_what_cannot_be_changed_is_told(
    store: SessionStore, model_dir: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = store.create_session(title="Trip")
    exchange(store, store.branch(session.id, "main"), "How?", "By train.")
    assert run("sessions", "undo", "-m", str(model_dir), "trip", "2")[0] == 2
    assert run("sessions", "drop", "-m", str(model_dir), "trip", "2")[0] == 2
    assert run("sessions", "undo", "trip", "0")[0] == 2
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO()))
    assert run("ask", "-m", str(model_dir), "--edit", "1", "why?")[0] == 2
    assert branches(store) == {"main": ["How?"]}
