"""Which words mean which command, and how a run ends."""

import gc
import stat
from pathlib import Path

import pytest
import typer

from kvchat.cli.parser.command_line import app, arrange, commands, options_of
from tests.cli.command_line import Run
from tests.cli.printed import run_python

pytestmark = pytest.mark.pure


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("", "resume"),
        ("demo", "resume demo"),
        ("-m starter demo", "resume -m starter demo"),
        ("--model=starter demo", "resume --model=starter demo"),
        ("Trip to Oslo", "resume Trip to Oslo"),
        ("resume ask", "resume ask"),
        ("-- ask", "resume -- ask"),
        ("-q ask -m starter hello", "ask -q -m starter hello"),
        ("-m ask ask hello", "ask -m ask hello"),
        ("sessions", "sessions list"),
        ("sessions --json", "sessions list --json"),
        ("pack ls --json", "pack list --json"),
        ("cache ls", "cache ls"),
        ("--data-dir d sessions --json rm x", "sessions rm --data-dir d --json x"),
        ("cache", "cache status"),
        ("sessions --help", "sessions --help"),
        ("--help", "--help"),
        ("--version", "--version"),
    ],
)
def test_the_first_word_that_is_no_option_is_the_command_or_a_session(typed: str, meant: str) -> None:
    assert arrange(typed.split(), typer.main.get_command(app)) == meant.split()


def test_no_option_is_a_flag_in_one_command_and_takes_a_value_in_another() -> None:
    """Where a command line begins with an option, the command is found behind its value."""
    root = commands()
    known = options_of(root)
    verbs = [verb for one in root.commands.values() for verb in getattr(one, "commands", {"": one}).values()]
    assert len(verbs) > 40
    assert all(options_of(verb).items() <= known.items() for verb in verbs)


def test_an_unknown_first_word_exits_5_and_suggests_the_command_that_is_near(run: Run) -> None:
    assert "did you mean the command `kvchat ask`" in run.err("asj", "hello", code=5).lower()


def test_the_interface_without_a_terminal_exits_2_and_names_ask(run: Run) -> None:
    assert "kvchat ask" in run.err(code=2)
    assert gc.isenabled(), "it looks for garbage only behind the first frame"


def test_an_unexpected_error_is_one_line_and_a_trace_in_a_private_log(home: Path) -> None:
    program = (
        "import sys\n"
        "from kvchat.cli.parser.command_line import app\n"
        "from kvchat.cli.main import run\n"
        "@app.command('burst')\n"
        "def burst() -> None:\n"
        "    raise RuntimeError('a seam gave way')\n"
        "sys.exit(run(['burst']))\n"
    )
    done = run_python(program)
    log = home / "state" / "kvchat.log"
    assert done.returncode == 1
    assert done.stderr == f"kvchat: unexpected error (RuntimeError); the details are in {log}\n"
    assert "a seam gave way" in log.read_text()
    assert stat.S_IMODE(log.stat().st_mode) == 0o600


ENDING = """
import atexit, sys, threading
from kvchat.cli.main import main
atexit.register(print, "taken apart")
sys.argv = ["kvchat", "--version"]
{before}
main()
"""
A_THREAD = "threading.Thread(target=lambda: (threading.main_thread().join(), print('still at work'))).start()"


@pytest.mark.parametrize(("before", "told"), [("", []), (A_THREAD, ["still at work", "taken apart"])])
def test_a_command_ends_at_once_unless_something_is_at_work(before: str, told: list[str]) -> None:
    program = ENDING.format(before=before)
    done = run_python(program)
    first, *rest = done.stdout.splitlines()
    assert first.startswith("kvchat ")
    assert rest == told
    assert done.stderr == ""


CHAT = ("kvchat.chat.service", "kvchat.chat.conversation", "jinja2", "tokenizers")
"""What answers are made with."""
STORE = ("sqlite3", "kvchat.session.store")
TYPER = ("typer", "kvchat.cli.parser.command_line", "kvchat.cli.parser.command_table")
ON_A_KEY = (
    "markdown_it",
    "tomllib",
    "kvchat.app.interface_host",
    *(f"kvchat.ui.screens.{name}" for name in ("help", "inspector", "gauge", "choices")),
)
HEAVY = ("torch", "transformers", "textual")
NOT_IMPORTED = {
    "--help": (
        *CHAT,
        *STORE,
        "kvchat.app.config",
        "kvchat.cli.parser.options",
        "kvchat.cli.commands.sessions.browse",
    ),
    "ask --help": (*CHAT, *STORE, "kvchat.cli.commands.sessions.browse", "kvchat.cli.commands.ask.ask"),
    "sessions list": (
        *CHAT,
        "kvchat.cli.commands.serve",
        "kvchat.cli.commands.cache.gauge",
        "kvchat.app.retention.session_removal",
        "tomllib",
    ),
    "config show": (*CHAT, *STORE, "kvchat.cli.commands.sessions.browse"),
    "--version": STORE,
    "sessions search x": (),
    "cache": (),
}


@pytest.mark.parametrize("words", NOT_IMPORTED)
def test_a_command_begins_without_what_only_others_need(words: str) -> None:
    program = (
        "import sys\n"
        "from kvchat.cli.main import run\n"
        "code = run(sys.argv[1].split())\n"
        "print(code, [name for name in sys.argv[2:] if name in sys.modules], file=sys.stderr)\n"
    )
    done = run_python(program, words, *HEAVY, *NOT_IMPORTED[words])
    assert done.stderr.endswith("0 []\n")


def test_the_window_is_drawn_without_chat_command_line_and_what_opens_on_a_key() -> None:
    program = (
        "import sys\n"
        "from kvchat.cli.main import run\n"
        "import kvchat.ui.app, kvchat.app.lazy\n"
        "code = run([])\n"
        "print(code, [name for name in sys.argv[1:] if name in sys.modules])\n"
    )
    done = run_python(program, "torch", *CHAT, *TYPER, *ON_A_KEY)
    assert done.stdout == "2 []\n"
    assert "needs a terminal" in done.stderr


def test_what_an_answer_is_told_with_does_not_load_the_interface() -> None:
    modules = "kvchat.cli.commands.ask.answer_writers, kvchat.app.export.exporter"
    script = f"import sys; import {modules}; print('textual' in sys.modules)"
    done = run_python(script)
    assert done.stdout == "False\n"
