"""Standard streams that are closed, full, or without a reader: an exit code, and never a traceback."""

import os
import subprocess
import sys

import pytest

from kvchat.app.config import read_settings
from kvchat.session.store import SessionStore

pytestmark = [pytest.mark.pure, pytest.mark.long]


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ("sessions list --json >/dev/full", 1),
        ("sessions list --json >&-", 1),
        ("config show >/dev/full", 1),
        ("sessions list 2>&-", 0),
        ("sessions show nothing 2>&-", 5),
        ("sessions show nothing 2>/dev/full", 5),
        ("sessions show nothing --json 2>&- >&-", 5),
        ("--version >/dev/full", 1),
        ("<&-", 2),
        ("--temp <&- >&- 2>&-", 2),
        ("ask -f - what <&-", 2),
    ],
)
def test_what_cannot_be_written_is_an_exit_code(words: str, code: int) -> None:
    script = f"exec {sys.executable} -m kvchat {words}"
    done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == code
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr
    assert done.stdout == "", "what is said on standard error never goes there"


def test_remarks_that_nobody_reads_leave_the_exit_code() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    words = [sys.executable, "-m", "kvchat", "sessions", "show", "nothing"]
    done = subprocess.run(words, stderr=writer, stdout=subprocess.PIPE, check=False)
    os.close(writer)
    assert done.returncode == 5
    assert done.stdout == b""


def test_a_file_never_gets_the_number_of_a_closed_stream() -> None:
    """What a library prints there would be written into it."""
    program = (
        "import os, sys; from kvchat.cli.output.standard_streams import occupy; occupy();"
        "sys.exit(os.open(os.devnull, os.O_RDONLY) < 3)"
    )
    script = f'exec {sys.executable} -c "{program}" <&- >&- 2>&-'
    assert subprocess.run(["sh", "-c", script], check=False).returncode == 0


@pytest.mark.parametrize("form", ["bundle", "md"])
@pytest.mark.parametrize(("place", "said"), [(">/dev/full", "cannot be written"), (">&-", "is closed")])
def test_an_export_that_cannot_be_written_is_an_exit_code(form: str, place: str, said: str) -> None:
    store = SessionStore(read_settings().paths.sessions_db)
    store.create_session(title="demo")
    store.close()
    script = f"exec {sys.executable} -m kvchat export demo --format {form} -o - {place}"
    done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert f"standard output {said}" in done.stderr
    assert "unexpected" not in done.stderr
    assert "Traceback" not in done.stderr
