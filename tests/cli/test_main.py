"""Which words mean which command, and how a run ends."""

import json
import stat
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
import typer

from kvchat.cli.main import app, arrange, run
from kvchat.cli.options import PlaceOptions
from kvchat.cli.shelf import open_store

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


def test_an_unknown_first_word_exits_5_and_suggests_the_command_that_is_near(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["asj", "hello"]) == 5
    assert "did you mean the command `kvchat ask`" in capsys.readouterr().err.lower()


def test_the_interface_without_a_terminal_exits_2_and_names_ask(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([]) == 2
    assert "kvchat ask" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "exit_code"),
    [
        (["ask", "--no-such-option", "x"], 2),
        (["ask", "--new", "a", "-s", "b", "x"], 2),
        (["ask", "-o", "warmth=1", "x"], 2),
        (["ask", "--top-p", "7", "x"], 2),
        (["ask", "--kv-disk-bytes", "many", "x"], 2),
        (["ask", "-f", "no-such-file", "x"], 2),
        (["ask", "--config", "no-such-file", "x"], 3),
        (["ask", "-s", "nobody", "x"], 5),
        (["ask", "-c", "x"], 5),
        (["sessions", "show", "nobody"], 5),
        (["ask", "-m", "/no/such/model", "x"], 4),
    ],
)
def test_each_mistake_has_its_exit_code_and_one_terminal_event(
    words: list[str], exit_code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*words, "--json"]) == exit_code
    told = capsys.readouterr()
    event = json.loads(told.out)
    assert (event["v"], event["event"], event["exit_code"]) == (1, "error", exit_code)
    assert event["message"] in told.err
    if words[0] == "ask":
        assert run([*words, "--ndjson"]) == exit_code
        assert [json.loads(line)["event"] for line in capsys.readouterr().out.splitlines()] == ["error"]


def test_an_environment_that_cannot_be_read_exits_3(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KVCHAT_SEED", "x")
    assert run(["sessions", "list"]) == 3
    assert "KVCHAT_SEED" in capsys.readouterr().err


def test_a_data_directory_that_cannot_be_written_exits_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["sessions", "list", "--data-dir", "/proc/kvchat"]) == 1
    assert "/proc/kvchat" in capsys.readouterr().err


def test_an_unexpected_error_is_one_line_and_a_trace_in_a_private_log(home: Path) -> None:
    program = (
        "import sys\n"
        "from kvchat.cli.main import app, run\n"
        "@app.command('burst')\n"
        "def burst() -> None:\n"
        "    raise RuntimeError('a seam gave way')\n"
        "sys.exit(run(['burst']))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    log = home / "state" / "kvchat.log"
    assert done.returncode == 1
    assert done.stderr == f"kvchat: unexpected error (RuntimeError); the details are in {log}\n"
    assert "a seam gave way" in log.read_text()
    assert stat.S_IMODE(log.stat().st_mode) == 0o600


@pytest.mark.parametrize(
    "words",
    [
        ["--help"],
        ["--version"],
        ["ask", "--help"],
        ["sessions", "list"],
        ["config", "show"],
        ["sessions", "search", "x"],
        ["cache"],
    ],
    ids=" ".join,
)
def test_commands_that_run_no_model_load_no_torch(words: list[str]) -> None:
    program = (
        "import sys\n"
        "from kvchat.cli.main import run\n"
        f"code = run({words!r})\n"
        "heavy = {'torch', 'transformers', 'textual', 'pydantic'} & set(sys.modules)\n"
        "sys.exit(f'loaded {heavy}' if heavy or code else 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout + done.stderr


def test_a_process_that_has_loaded_torch_ends_without_taking_it_apart_and_says_all(home: Path) -> None:
    """Nothing that was printed or logged is lost by it."""
    script = """
import atexit, logging, sys, types
from kvchat.cli import main
from kvchat.config import read_settings
from kvchat.cli.logs import start_log
start_log(read_settings().paths)
logging.getLogger("kvchat").warning("the last words")
atexit.register(print, "taken apart")
sys.modules["torch"] = types.ModuleType("torch")
print("said before", end="")
sys.stderr.write("a remark")
main.main()
"""
    done = subprocess.run(
        [sys.executable, "-c", script, "config", "path"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0
    assert done.stdout.startswith("said before")
    assert done.stdout.endswith("config.toml\n")
    assert done.stderr == "a remark"
    assert "the last words" in (home / "state" / "kvchat.log").read_text()


@pytest.mark.parametrize(
    "words",
    ["sessions list", "sessions tree", "sessions search demo", "models list", "cache ls", "pack list"],
)
def test_every_list_is_one_value_or_a_line_each(
    words: str, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with closing(open_store(PlaceOptions().settings())) as store:
        store.create_session(title="demo", model="starter")
    named = [*words.split(), *(["demo"] if words.endswith("tree") else [])]
    assert run([*named, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert isinstance(rows, list)
    assert run([*named, "--ndjson"]) == 0
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == rows
