"""Every exit code that needs no model, one run of each also by the real program.

`test_warm.py` and `test_strict_cache.py` have those that need one.

Each end is told once on standard error, and to whoever reads JSON as the one terminal event.
"""

import json
from contextlib import closing
from pathlib import Path

import pytest

from kvchat.app.open_store import open_store
from kvchat.cli.parser.options import PlaceOptions
from tests.cli.command_line import Run
from tests.cli.printed import run_program

pytestmark = [pytest.mark.pure, pytest.mark.long]


@pytest.fixture
def place(home: Path, tmp_path: Path) -> Path:
    """A directory with two sessions of similar names behind it, and files that are not what they say."""
    with closing(open_store(PlaceOptions().settings())) as store:
        store.create_session(title="alike one")
        store.create_session(title="alike two")
    (tmp_path / "bad.toml").write_text("model = \n")
    (tmp_path / "bad.kvchat").write_bytes(b"KVCHAT but no bundle" * 10)
    (tmp_path / "pickled").mkdir()
    (tmp_path / "pickled" / "config.json").write_text('{"model_type": "llama"}')
    (tmp_path / "pickled" / "pytorch_model.bin").write_bytes(b"\x80\x04.")
    return tmp_path


ROWS = [
    (0, ["--version"]),
    (0, ["sessions", "list", "--json"]),
    (1, ["sessions", "list", "--json", "--data-dir", "/proc/nowhere"]),
    (2, ["ask", "--json", "--no-such-option"]),
    (2, ["ask", "--ndjson", "-s", "a", "-c", "hello"]),
    (2, ["ask", "--json", "--new", "alike one", "hello"]),
    (2, ["sessions", "nonsense", "--json"]),
    (2, ["resume"]),
    (2, []),
    (3, ["ask", "--json", "--config", "{place}/bad.toml", "hello"]),
    (3, ["config", "show", "--json", "--config", "{place}/none.toml"]),
    (4, ["ask", "--json", "-m", "{place}/nothing", "hello"]),
    (4, ["ask", "--ndjson", "-m", "{place}/pickled", "hello"]),
    (5, ["ask", "--json", "-s", "nobody", "hello"]),
    (5, ["sessions", "show", "--json", "alike"]),
    (5, ["ask", "--ndjson", "-s", "alike", "hello"]),
    (5, ["sesions"]),
    (7, ["import", "--json", "{place}/bad.kvchat"]),
]


@pytest.mark.parametrize(("code", "words"), ROWS, ids=str)
def test_a_run_ends_with_the_code_of_what_happened(
    code: int, words: list[str], place: Path, run: Run
) -> None:
    found, out, err = run(*(word.format(place=place) for word in words))
    assert found == code, err
    if code:
        assert err.startswith("kvchat: ")
    if code and {"--json", "--ndjson"} & set(words):
        [event] = map(json.loads, out.splitlines())
        assert (event["v"], event["event"], event["exit_code"]) == (1, "error", code)


@pytest.mark.parametrize(("code", "words"), dict(ROWS).items(), ids=str)
def test_a_process_ends_with_the_same_code(code: int, words: list[str], place: Path) -> None:
    done = run_program(*(word.format(place=place) for word in words), HF_HUB_OFFLINE="1")
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
