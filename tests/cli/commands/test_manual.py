"""Help, the manual page and what the shell offers: all from the table of commands."""

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import typer

from kvchat.app.config import KEYS
from kvchat.app.open_store import open_store
from kvchat.cli.parser.command_line import app
from kvchat.cli.parser.command_table import COMMANDS, Command
from kvchat.cli.parser.options import PlaceOptions
from tests.cli.command_line import Run
from tests.cli.printed import run_python

pytestmark = [pytest.mark.pure, pytest.mark.long]

Capture = pytest.CaptureFixture[str]
COMPLETE = "import sys; from kvchat.cli.main import main; sys.argv[0] = 'kvchat'; main()"


@pytest.fixture(scope="module")
def root() -> Any:
    """The commands as they are parsed; making them takes a while."""
    return typer.main.get_command(app)


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.words)
def test_help_begins_with_what_a_command_does_and_examples_of_it(
    command: Command, root: Any, capsys: Capture
) -> None:
    root.main(args=[*command.words.split(), "--help"], prog_name="kvchat", standalone_mode=False)
    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    assert lines.index(command.help) < lines.index("Options:")
    for example in command.examples:
        assert lines.index(command.help) < lines.index(example) < lines.index("Options:")


def test_every_example_is_of_a_command_that_is_there(root: Any) -> None:
    for command in COMMANDS:
        for example in command.examples:
            assert f"kvchat {command.words.split()[0]}" in example or command.words == "resume"
    assert set(root.commands) == {command.words.split()[0] for command in COMMANDS}


def test_the_manual_page_has_every_command_option_and_variable(run: Run) -> None:
    page = run.out("man").replace("\\-", "-")
    for command in COMMANDS:
        assert f".SS kvchat {command.words}\n" in page
    assert all(key.variable in page for key in KEYS.values())
    assert "--fail-on-length" in page
    # A line that begins with a dot is a command to the formatter; all of these are known ones.
    heads = {line.split()[0] for line in page.splitlines() if line.startswith((".", "'"))}
    assert heads == {".TH", ".SH", ".SS", ".PP", ".nf", ".fi", ".TP"}


@pytest.fixture
def sessions(home: Path) -> tuple[str, str]:
    """Return the ids of two sessions, `demo` and `Trip to Oslo`."""
    with closing(open_store(PlaceOptions().settings())) as store:
        return store.create_session(title="demo").id, store.create_session(title="Trip to Oslo").id


def offered(line: str) -> list[str]:
    """Ask as bash does."""
    words = line.split(" ")
    asked = {"_KVCHAT_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)}
    # Whatever is offered is offered without them.
    nothing_heavy = "import sys; sys.modules |= dict.fromkeys(('torch', 'transformers', 'textual'));"
    done = run_python(nothing_heavy + COMPLETE, **asked)
    assert done.stderr == ""
    return [word for word in done.stdout.split("\n") if word]


def test_the_shell_is_offered_sessions_by_title_and_id(sessions: tuple[str, str]) -> None:
    demo, trip = sessions
    assert offered("kvchat sessions show de") == ["demo"]
    assert offered(f"kvchat ask -s {trip[:5]}") == [trip]
    assert offered("kvchat resume Tr") == [r"Trip\ to\ Oslo"]
    assert offered("kvchat dem") == ["demo"]
    assert demo in offered("kvchat sessions rm ")


def test_the_shell_is_offered_commands_and_settings() -> None:
    assert offered("kvchat sess") == ["sessions"]
    assert offered("kvchat config set sampling.temp") == ["sampling.temperature"]
