"""`kvchat` in a real terminal: the window before the model, and the way back to it."""

from contextlib import closing
from pathlib import Path

import pytest

from kvchat.app.config import read_settings
from kvchat.app.open_store import open_store
from kvchat.engine.models.locate import STARTER
from kvchat.ui.widgets.welcome import things_to_try
from tests.cli.command_line import Run
from tests.remote.test_remote_processes import variables  # noqa: F401
from tests.serving.conftest import Served, served  # noqa: F401
from tests.terminal import Terminal, terminal

pytestmark = pytest.mark.tui

# Runs kvchat and lets nobody import torch before a file exists.
HELD_BACK = """
import sys, time
from pathlib import Path

def wait_for_leave(event, arguments):
    if event == "import" and arguments[0] == "torch":
        while not Path(sys.argv[1]).exists():
            time.sleep(0.01)

sys.addaudithook(wait_for_leave)
from kvchat.cli.main import run
sys.exit(run(sys.argv[2:]))
"""


@pytest.fixture
def server(variables: dict[str, str], home: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    """A server answers in the windows of this home, which load no model then."""
    for name, value in (variables | {"KVCHAT_HOME": str(home)}).items():
        monkeypatch.setenv(name, value)


def test_the_window_is_drawn_and_typed_into_before_torch_is_imported(
    tmp_path: Path, tiny_model: Path
) -> None:
    leave = tmp_path / "torch may be imported now"
    with terminal(["-c", HELD_BACK, str(leave), "-m", str(tiny_model), "--max-tokens", "5"]) as shown:
        shown.until_shown("f1 help")
        shown.type("typed while it loads")
        shown.until_shown("typed while it loads")
        assert not leave.exists()
        leave.touch()
        shown.type("\r")
        shown.until_shown("computed")
        shown.type("\x11")
        assert shown.exit_status() == 0


def test_a_tokenizer_that_cannot_be_read_ends_the_window_and_is_named(model_dir: Path) -> None:
    (model_dir / "tokenizer.json").write_text("{")
    with terminal(["-m", "kvchat", "-m", str(model_dir)]) as shown:
        assert shown.exit_status() == 4
        shown.until(lambda: "tokenizer.json cannot be read" in shown.unbroken)


def test_ctrl_q_while_the_model_loads_leaves_at_once(tmp_path: Path, tiny_model: Path) -> None:
    never = tmp_path / "never"
    with terminal(["-c", HELD_BACK, str(never), "-m", str(tiny_model)]) as shown:
        shown.until_shown("f1 help")
        shown.type("\x11")
        assert shown.exit_status() == 0


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("-c",), 5),
        (("-s", "nothing"), 5),
        (("-s", "one", "-c"), 2),
        (("two", "--new", "one"), 2),
        (("--new", "one", "--temp"), 2),
        (("--no-attach",), 2),
    ],
)
def test_the_ways_to_name_a_session_are_those_of_a_question(
    words: tuple[str, ...], code: int, run: Run
) -> None:
    """Without a terminal it ends before anything is loaded."""
    assert "No such option" not in run.err(*words, code=code)


def say(shown: Terminal) -> None:
    shown.until_shown("f1 help")
    shown.type("remember\r")
    shown.until_shown("by 127.0.0.1")


def test_a_session_opens_by_option_or_as_the_last_one_or_under_a_new_name(server: None) -> None:
    with terminal(["-m", "kvchat", "--new", "the sea"]) as shown:
        say(shown)
        shown.type("\x11")
        assert shown.exit_status() == 0
        shown.until_shown("resume with: kvchat ")
        resumed = shown.text.partition("resume with: kvchat ")[2].split()[0]
    with terminal(["-m", "kvchat", "--new", "unused"]) as shown:
        shown.until_shown("f1 help")
        shown.type("\x11")
        assert shown.exit_status() == 0
        assert b"resume with" not in shown.received, "nothing was said in it"
    with closing(open_store(read_settings())) as store:
        assert [one.session.title for one in store.list_sessions()] == ["the sea"]
    with (
        terminal(["-m", "kvchat", "-c"]) as last,
        terminal(["-m", "kvchat", "-s", "the sea"]) as named,
        terminal(["-m", "kvchat", resumed]) as told,
    ):
        for shown in (last, named, told):
            shown.until_shown("▌ remember")
            shown.type("\x11")
            assert shown.exit_status() == 0


@pytest.mark.parametrize("question", things_to_try(STARTER))
def test_the_starter_answers_what_an_empty_conversation_suggests(run: Run, question: str) -> None:
    answer = run.out("ask", "-q", "--temp", question)
    assert answer.strip()
    assert "cannot help" not in answer


@pytest.mark.parametrize("options", [("--temp",), ()])
def test_what_is_not_to_last_is_not_offered_to_be_resumed(server: None, options: tuple[str, ...]) -> None:
    with terminal(["-m", "kvchat", *options]) as shown:
        if not options:
            shown.until_shown("f1 help")
            shown.type("/temp\r")
        say(shown)
        shown.type("\x11")
        assert shown.exit_status() == 0
        assert b"resume with" not in shown.received
