"""`--when-full compress` on a nearly full disk: what was used longest ago stays, in fewer bits."""

import io
import json
import os
import signal
from pathlib import Path
from threading import Thread, main_thread

import pytest

from kvchat.app.retention.block_owners import BlockOwner
from kvchat.app.retention.compress_unused import FREE_SHARE, first_that_pays, is_nearly_full
from kvchat.session.kv.provenance import origin_of
from kvchat.session.turn_lock import turn_lock
from tests.cli.command_line import Run
from tests.cli.homes import block_bytes, session_of
from tests.threads import wait_until_in

WORDS, OTHER_WORDS = "remember the sea ", "look at the moon "


@pytest.fixture
def nearly_full(ask: Run, home: Path) -> tuple[str, str]:
    """An old small conversation and a large one, which leave a sixth of a disk that is no larger."""
    assert ask("--new", "small", OTHER_WORDS * 20)[0] == 0
    assert ask("--new", "large", WORDS * 100)[0] == 0
    return "--kv-disk-bytes", str(sum(block_bytes(home).values()) * 6 // 5)


@pytest.mark.cpu
@pytest.mark.usefixtures("loading_pays", "quick_children")
def test_what_was_used_longest_ago_is_kept_in_fewer_bits_and_found_there(
    ask: Run, run: Run, home: Path, nearly_full: tuple[str, str]
) -> None:
    roomy = ("--kv-disk-bytes", str(10 * int(nearly_full[1])))
    for words in (nearly_full, (*roomy, "--when-full", "compress")):
        code, _, told = ask("-s", "large", *words, "and?")
        assert (code, "nearly full" in told) == (0, False)
        assert session_of(home, "small").namespace == "", "it was not chosen, or there is room"
    code, out, told = ask("--json", "-s", "large", *nearly_full, "--when-full", "compress", "and?")
    assert code == 0, told
    assert json.loads(out)["exact"] is True
    assert "“small” is kept in int8, and approximate" in told
    assert "exact goes back" in told
    origin = origin_of(session_of(home, "small").namespace)
    assert origin is not None
    assert (origin.cache_format, origin.source) == ("int8", "exact")
    assert session_of(home, "large").namespace == "", "it was used last"
    assert sum(block_bytes(home).values()) <= int(nearly_full[1])
    answer = ask.json("-s", "small", *nearly_full, "and?")
    assert answer["exact"] is False
    assert answer["usage"]["prompt_tokens"] - answer["usage"]["cached_tokens"] < 64, "all of it stayed"


@pytest.mark.cpu
@pytest.mark.usefixtures("loading_pays")
def test_what_is_pinned_or_being_answered_and_what_is_strict_stays_as_it_is(
    ask: Run, run: Run, home: Path, nearly_full: tuple[str, str]
) -> None:
    chosen = ("-s", "large", *nearly_full, "--when-full", "compress")
    code, _, told = ask(*chosen, "--strict-cache", "and?")
    assert (code, "nearly full" in told) == (0, False)
    with turn_lock(home / "data" / "locks", session_of(home, "small").id):
        code, _, told = ask(*chosen, "and?")
    assert code == 0
    assert "“small” stays exact: an answer is being written in it" in told
    assert run("sessions", "pin", "small")[0] == 0
    code, _, told = ask(*chosen, "and?")
    assert (code, "nearly full" in told) == (0, False)
    assert {session_of(home, title).namespace for title in ("small", "large")} == {""}


@pytest.mark.cpu
@pytest.mark.usefixtures("loading_pays")
def test_what_was_just_answered_stays_exact(ask: Run, home: Path, nearly_full: tuple[str, str]) -> None:
    """The large one, alone left, does not fit beside itself."""
    code, _, told = ask("-s", "small", *nearly_full, "--when-full", "compress", "and?")
    assert (code, "nearly full" in told) == (0, False), told
    assert session_of(home, "small").namespace == ""


class Interrupting(io.StringIO):
    """Standard output on which Ctrl-C falls with the first words of the answer."""

    def write(self, text: str) -> int:
        if text.strip() and not self.getvalue():
            signal.raise_signal(signal.SIGINT)
        return super().write(text)


@pytest.mark.cpu
@pytest.mark.usefixtures("loading_pays")
def test_after_ctrl_c_in_an_answer_nothing_is_compressed(
    ask: Run, home: Path, nearly_full: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr("sys.stdout", Interrupting())
        code, _, told = ask("-s", "large", *nearly_full, "--when-full", "compress", "and?")
    assert (code, "nearly full" in told) == (130, False), told
    assert session_of(home, "small").namespace == ""


STUCK_CONVERTING = """
import os, sys, time
if "convert" in sys.orig_argv:
    with open(os.environ["STUCK_FIFO"], "w") as fifo:
        fifo.write(f"{os.getpid()}\\n")
    time.sleep(1000)
"""


@pytest.mark.cpu
@pytest.mark.usefixtures("loading_pays")
def test_ctrl_c_behind_the_answer_ends_the_process_that_converts_and_starts_no_other(
    ask: Run, home: Path, nearly_full: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fifo, converting = tmp_path / "fifo", []
    os.mkfifo(fifo)
    (tmp_path / "sitecustomize.py").write_text(STUCK_CONVERTING)
    monkeypatch.setenv("STUCK_FIFO", str(fifo))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    def interrupt() -> None:
        converting.append(int(fifo.read_text()))
        wait_until_in(main_thread(), "communicate")
        os.kill(os.getpid(), signal.SIGINT)

    sender = Thread(target=interrupt, daemon=True)
    sender.start()
    told = ask.err("-s", "large", *nearly_full, "--when-full", "compress", "and?", code=130)
    sender.join()
    assert "stays exact" not in told
    with pytest.raises(ProcessLookupError):
        os.kill(converting[0], 0)
    assert session_of(home, "small").namespace == ""


def unused(title: str, num_bytes: int, own_bytes: int) -> BlockOwner:
    return BlockOwner(
        kind="session", name=title, id=title, num_blocks=1, num_bytes=num_bytes, own_bytes=own_bytes
    )


@pytest.mark.pure
def test_the_first_is_taken_that_finds_room_beside_itself_and_gives_more_back_than_it_takes() -> None:
    shared, large, small = unused("a", 100, 59), unused("b", 300, 300), unused("c", 100, 60)
    assert first_that_pays([shared, large, small], 60) is small
    assert first_that_pays([shared, large, small], 180) is large
    assert first_that_pays([shared, large, small], 59) is None
    assert first_that_pays([], 100) is None


@pytest.mark.pure
def test_a_disk_is_nearly_full_before_anything_has_to_go() -> None:
    assert is_nearly_full(100 // FREE_SHARE - 1, 100)
    assert is_nearly_full(-5, 100)
    assert not is_nearly_full(100 // FREE_SHARE, 100)
