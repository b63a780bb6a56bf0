"""`kvchat export` as text: which branch, which format, where to, and what a conversation cannot do."""

import json
import re
from pathlib import Path

import pytest

from kvchat.app.composition import Kvchat, start_worker
from kvchat.app.config import read_settings
from kvchat.app.interface_host import InterfaceHost
from kvchat.app.retention.session_removal import SessionService
from kvchat.errors import StorageError
from kvchat.session.tree import Session
from tests.cli.command_line import Run
from tests.session.turns import exchange

pytestmark = pytest.mark.pure

DOCS = Path(__file__).parents[4] / "docs" / "exports.md"


@pytest.fixture
def host(store: SessionService) -> InterfaceHost:
    settings = read_settings()
    return InterfaceHost(settings, Kvchat(settings, store, start_worker), None, None)


@pytest.fixture
def session(store: SessionService) -> Session:
    """A conversation that forks behind its first answer; `boat` was used last."""
    session = store.create_session(title="Trip to Oslo", system="Be brief.", model="/home/ana/models/tiny")
    first = exchange(store, store.branch(session.id, "main"), "How?", "By **train**.")
    exchange(store, first, "When?", "At noon.")
    boat = store.create_branch(session.id, leaf_id=first.leaf_id, name="boat")
    exchange(store, boat, "And by boat?", "<b>At night.</b>")
    return store.session(session.id)


def read(path: str) -> str:
    return Path(path).read_text(encoding="utf-8")


def test_markdown_and_the_web_page_show_the_branch_used_last_or_the_one_asked_for(
    session: Session, run: Run
) -> None:
    assert run("export", "trip", "--format", "md")[0] == 0
    assert run("export", "trip", "-o", "main.html", "--branch", "main")[0] == 0
    shown, page = read("trip-to-oslo.md"), read("main.html")
    assert "tiny · branch boat · " in shown
    assert "> &lt;b>At night.&lt;/b>" in shown
    assert "At noon" not in shown
    assert "<strong>train</strong>" in page
    assert "At noon." in page
    assert "At night" not in page


def test_json_holds_the_whole_tree_with_its_ids_or_one_branch(
    store: SessionService, session: Session, run: Run
) -> None:
    run.out("export", "trip", "-o", "all.json")
    found = json.loads(read("all.json"))
    assert (found["format"], found["version"], found["model"]) == ("kvchat.session", 1, "tiny")
    assert {branch["name"]: branch["leaf"] for branch in found["branches"]} == {
        branch.name: branch.leaf_id for branch in store.branches(session.id)
    }
    stored = store.all_turns(session.id)
    assert [turn["id"] for turn in found["turns"]] == [turn.id for turn in stored]
    assert [turn["token_ids"] for turn in found["turns"]] == [list(turn.token_ids or ()) for turn in stored]
    run.out("export", "trip", "-o", "one.json", "--branch", "main")
    one = json.loads(read("one.json"))
    assert [branch["name"] for branch in one["branches"]] == ["main"]
    assert [turn["text"] for turn in one["turns"]] == ["How?", "By **train**.", "When?", "At noon."]


def test_the_page_of_exports_names_every_field_of_the_json(session: Session, run: Run) -> None:
    run.out("export", "trip", "-o", "all.json")
    found = json.loads(read("all.json"))
    documented = set(re.findall(r"`([a-z_]+)`", DOCS.read_text()))
    turn = found["turns"][1]
    fields = {*found, *found["branches"][0], *turn, *turn["usage"], *turn["loaded"], *turn["timings"]}
    assert fields <= documented


def test_the_format_follows_from_the_name_of_the_file_unless_it_is_given(session: Session, run: Run) -> None:
    for name, begin in (
        ("a.md", "# Trip"),
        ("a.html", "<!doctype"),
        ("a.json", "{\n"),
        ("a.htm", "<!doctype"),
    ):
        assert run("export", "trip", "-o", name)[0] == 0
        assert read(name).startswith(begin)
    assert run("export", "trip", "-o", "a.txt", "--format", "md")[0] == 0
    assert read("a.txt").startswith("# Trip")
    assert run("export", "trip", "--format", "word")[0] == 2
    Path("folder").mkdir()
    assert run("export", "trip", "-o", "folder", "--format", "html")[0] == 0
    assert read("folder/trip-to-oslo.html").startswith("<!doctype")


def test_standard_output_carries_the_text_alone(session: Session, run: Run) -> None:
    code, out, err = run("export", "trip", "-o", "-", "--format", "json")
    assert (code, json.loads(out)["title"]) == (0, "Trip to Oslo")
    assert "wrote standard output: 6 turns" in err
    assert run("export", "trip", "-o", "-", "--format", "md", "--json")[0] == 2


def test_a_file_that_exists_is_replaced_only_if_that_is_said(session: Session, run: Run) -> None:
    Path("a.md").write_text("mine")
    assert run("export", "trip", "-o", "a.md")[0] == 2
    assert read("a.md") == "mine"
    assert run("export", "trip", "-o", "a.md", "--force")[0] == 0
    assert read("a.md").startswith("# Trip")
    assert Path("a.md").stat().st_mode & 0o777 == 0o600


def test_a_place_that_cannot_be_written_is_told_and_nothing_is_left_there(
    host: InterfaceHost, session: Session, run: Run
) -> None:
    assert run("export", "trip", "-o", "nowhere/a.md")[0] == 1
    with pytest.raises(StorageError, match="No such file or directory; choose another place"):
        host.export(session.id, "main", "nowhere/a.md")


@pytest.mark.parametrize("word", ["md", ".md"])
def test_an_ending_alone_names_the_format_and_the_session_the_file(
    word: str, host: InterfaceHost, session: Session, home: Path
) -> None:
    host.export(session.id, "main", word)
    assert [path.name for path in Path.cwd().iterdir()] == ["trip-to-oslo.md"]


def test_no_format_carries_what_would_steer_a_terminal(store: SessionService, run: Run) -> None:
    session = store.create_session(title="\x1b]0;owned\x07", system="\x9b2J")
    exchange(store, store.branch(session.id, "main"), "a\x1b[31mb\u202ec", "d\x1b[2Je")
    for format in ("md", "html", "json"):
        assert not set(run.out("export", session.id, "-o", "-", "--format", format)) & set(
            "\x1b\x07\x9b\u202e"
        )
