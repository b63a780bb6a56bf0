"""Odd words, odd files, odd surroundings: one clear message that says what to do, and the documented code.

`{place}` is a directory with things that are no regular files in it.
"""

import io
import json
import os
from pathlib import Path

import pytest

from kvchat.cli.output.standard_streams import soften_stream
from tests.cli.command_line import Run
from tests.cli.printed import run_program
from tests.cli.secret_home import make_talk

pytestmark = pytest.mark.pure

NO_TEXT = "\udcff"
"""What a byte that is no UTF-8 arrives as."""
LONG = "y" * 100_000
MOST_SHOWN = 2100
TALK = "about it"
"""The title of a conversation."""

WORDS = [
    # What is asked, and the documents before it.
    (2, ["ask", ""], "try: kvchat ask 'What is a KV cache?'"),
    (2, ["ask", "-f", "{place}", "what?"], "name the files in it"),
    (2, ["ask", "-f", "", "what?"], "'--file' / '-f': it is empty; give a value"),
    (2, ["ask", "-f", "/dev/zero", "what?"], "more than 64 MiB, which no model reads; give a part"),
    (2, ["ask", "-f", "{place}/latin", "what?"], "convert it, for example with iconv"),
    # Sessions and models.
    (5, ["ask", "-s", "no such session", "what?"], "`kvchat sessions list` shows them all"),
    (5, ["ask", "-s", "ñandú ☂ 猫", "what?"], "`kvchat sessions list` shows them all"),
    (5, ["ask", "-s", "-x", "what?"], "there is no session '-x'"),
    (5, ["sessions", "show", "--", "--json"], "there is no session '--json'"),
    (5, ["ask", "-s", LONG, "what?"], "`kvchat sessions list` shows them all"),
    (5, ["ask", "-c", "what?"], "session"),
    (5, [LONG], "`kvchat sessions list` shows them all"),
    (2, ["ask", "-s", "", "what?"], "'--session' / '-s': it is empty; give a value"),
    (2, ["ask", "-s", NO_TEXT, "what?"], "is not UTF-8 text"),
    (2, ["ask", "--system", NO_TEXT, "what?"], "is not UTF-8 text"),
    (2, ["sessions", "fork", TALK, NO_TEXT], "is not UTF-8 text"),
    (2, ["ask", "-m", "", "what?"], "'--model' / '-m': it is empty; give a value"),
    (2, ["sessions", "lst"], "did you mean 'list'?"),
    (2, ["cache", "frobnicate"], "there are status, "),
    # Numbers.
    (2, ["ask", "--max-tokens", "-5", "what?"], "max_tokens must be at least 1, not -5"),
    (2, ["ask", "--max-tokens", "9" * 5000, "what?"], "max_tokens must have at most 40 digits"),
    (2, ["ask", "--temperature", "nan", "what?"], "nan is not a valid number"),
    (2, ["ask", "--temperature", "inf", "what?"], "temperature must be 0 or more"),
    (2, ["ask", "--temperature", "-1", "what?"], "temperature must be 0 or more"),
    (2, ["ask", "-o", "temperature=nan", "what?"], "temperature must be a number, not 'nan'"),
    (2, ["ask", "--seed", "-1", "what?"], "seed must be at least 0"),
    (2, ["ask", "--kv-disk-bytes", "-5", "what?"], "must be a size such as 2GiB"),
    (2, ["ask", "-n", "-1", "what?"], "-1 must be at least 1"),
    (2, ["ask", "--temperature", "hot", "what?"], "'--temperature': 'hot' is not a valid number"),
    (2, ["ask", "-o", "warmth=1", "what?"], "warmth"),
    (2, ["cache", "gauge", TALK, "--keep", "nan"], "nan is not a valid number"),
    (2, ["encrypt", "on", "--cost", "21"], "'--cost': 21 must be at most 20"),
    (2, ["sessions", "search", "--limit", "many", "it"], "'--limit': 'many' is not a valid whole number"),
    (2, ["sessions", "search", "--limit", "1.5", "it"], "whole number"),
    (2, ["sessions", "search", "--limit", "0", "it"], "at least 1"),
    (2, ["sessions", "search"], "WORD"),
    (2, ["sessions", "search", "--limit", str(10**30), "it"], "must be at most 1000000."),
    (2, ["plan", "starter", "--context", str(10**20)], "--context must be at most 1,099,511,627,776"),
    (2, ["plan", "starter", "--context", "9" * 5000], "--context must have at most 40 digits"),
    # Places.
    (2, ["sessions", "list", "--data-dir", ""], "'--data-dir': it is empty; give a value"),
    (2, ["cache", "path", "--cache-dir", ""], "'--cache-dir': it is empty; give a value"),
    (2, ["config", "path", "--config", ""], "'--config': it is empty; give a value"),
    (2, ["export", TALK, "--format", "md", "--force", "-o", "{place}/pipe"], "`-o -` prints instead"),
    (3, ["config", "set", "model", "a", "--config", "{place}/pipe"], "is not a regular file"),
    (3, ["sessions", "--config", "{place}/nothing.toml"], "there is no configuration file"),
    (1, ["sessions", "--data-dir", "/proc/nowhere"], "choose another --data-dir"),
    # Settings.
    (2, ["config", "set", "sampling.sed", "1"], "did you mean 'sampling.seed'?"),
    (2, ["config", "set", "model", ""], "model must be said, and is empty"),
    (2, ["config", "set", "engine.idle_demote_s", "nan"], "must be a number, not 'nan'"),
]


@pytest.fixture
def place(tmp_path: Path) -> Path:
    place = tmp_path / "place"
    place.mkdir()
    os.mkfifo(place / "pipe")
    (place / "latin").write_bytes(b"caf\xe9")
    return place


def _label(value: object) -> str:
    words = " ".join(value) if isinstance(value, list) else str(value)
    return ascii(words)[1:-1][:40]


@pytest.mark.parametrize(("code", "words", "told"), WORDS, ids=_label)
def test_odd_words_end_with_one_message_that_says_what_to_do(
    code: int, words: list[str], told: str, place: Path, home: Path, run: Run
) -> None:
    if TALK in words:
        make_talk(home, "it")
    found, out, err = run(*(word.format(place=place) for word in words))
    assert (found, out) == (code, ""), err
    assert err.startswith("kvchat: ")
    assert told in err
    assert "unexpected" not in err
    assert len(err) < MOST_SHOWN, "both ends of what was typed are seen, not all of it"
    assert (place / "pipe").is_fifo()
    assert not list(Path.cwd().iterdir()), "nothing is written where one happens to be"


@pytest.mark.parametrize(
    "words", [["ask", "-s", LONG, "what?"], ["sessions", "lst"], ["ask", "-n", "-1", "x"]]
)
def test_programs_get_the_same_message(words: list[str], run: Run) -> None:
    code, out, err = run(*words, "--json")
    event = json.loads(out)
    assert (event["event"], event["exit_code"]) == ("error", code)
    assert err == f"kvchat: {event['message']}\n"


Environ = dict[str, str | None]


@pytest.mark.parametrize(
    ("code", "environ", "told"),
    [
        (3, {"KVCHAT_DATA_DIR": ""}, "KVCHAT_DATA_DIR: data_dir must be a path, and is empty"),
        (3, {"KVCHAT_MODEL": ""}, "KVCHAT_MODEL: model must be said, and is empty"),
        (3, {"KVCHAT_SYSTEM": NO_TEXT}, "KVCHAT_SYSTEM: system must be text in UTF-8"),
        (3, {"KVCHAT_IDLE_DEMOTE_S": "nan"}, "idle_demote_s must be a number"),
        (3, {"KVCHAT_SED": "1"}, "did you mean 'KVCHAT_SEED'?"),
        (
            3,
            {"KVCHAT_KEY_FIND": "f5", "KVCHAT_KEY_CACHE": "f6, f5"},
            "keys.find and keys.cache are both 'f5'",
        ),
        (1, {"KVCHAT_HOME": None, "XDG_DATA_HOME": None, "HOME": "/proc"}, "choose another --data-dir"),
        (0, {"TERM": "dumb"}, ""),
        (0, {"COLUMNS": "1"}, ""),
        (0, {"COLUMNS": "wide"}, ""),
    ],
    ids=_label,
)
def test_odd_surroundings_are_used_or_told(
    code: int, environ: Environ, told: str, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environ.items():
        if value is None:
            monkeypatch.delenv(name, raising=False)
        else:
            monkeypatch.setenv(name, value)
    assert told in run.err("sessions", code=code)


def test_a_directory_that_is_gone_has_no_settings_and_no_paths(run: Run, tmp_path: Path) -> None:
    (tmp_path / "work").rmdir()
    assert run("sessions")[0] == 0
    assert "must be a path from /" in run.err("cache", "path", "--cache-dir", "here", code=2)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('[keys]\nfind = "f5"\ncache = "ctrl+k,f5"', "keys.find and keys.cache are both 'f5'"),
        ('[keys]\nfind = "shift+ctrl+k"\ncache = "ctrl+shift+k"', "are both 'ctrl+shift+k'"),
        ('"sampling.seed" = 1\n[sampling]\nseed = 2', "'sampling.seed' is set twice"),
        ("seed = " + "[" * 5000, "is not valid TOML"),
        ("[sampling]\nseed = " + "9" * 5000, "is not valid TOML"),
        ("[engine]\nidle_demote_s = nan", "idle_demote_s must be a number, not nan"),
    ],
    ids=_label,
)
def test_a_file_that_contradicts_itself_is_told_by_name(text: str, told: str, home: Path, run: Run) -> None:
    home.mkdir()
    (home / "config.toml").write_text(text)
    err = run.err("sessions", code=3)
    assert told in err
    assert str(home / "config.toml") in err


def test_a_key_that_the_environment_took_ends_no_command_and_can_be_given_back(
    home: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KVCHAT_KEY_HELP", "f9")
    assert "are both 'f9'" in run.err("config", "set", "keys.find", "f9", code=3)
    assert run("sessions")[0] == 0
    (home / "config.toml").write_text('[keys]\nfind = "f9"\n')
    assert run("sessions")[0] == 3
    assert run("config", "set", "keys.find", "--unset")[0] == 0
    assert run("sessions")[0] == 0


@pytest.mark.parametrize(
    ("is_terminal", "written"), [(False, b"caf\xff e... > \n"), (True, b"caf\\xff e... > \n")]
)
def test_what_an_encoding_lacks_is_written_in_its_simplest_form(is_terminal: bool, written: bytes) -> None:
    class Place(io.BytesIO):
        def isatty(self) -> bool:
            return is_terminal

    place = Place()
    stream = io.TextIOWrapper(place, encoding="ascii")
    soften_stream(stream)
    stream.write("caf\udcff é… → \n")
    stream.flush()
    assert place.getvalue() == written


def test_a_terminal_whose_locale_is_plain_gets_ascii_and_a_file_what_was_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("LC_ALL", "C")
    for is_terminal, written in ((True, b"reused 3 . exact"), (False, "reused 3 · exact".encode())):
        place = io.BytesIO()
        place.isatty = lambda is_terminal=is_terminal: is_terminal  # type: ignore[method-assign]
        stream = io.TextIOWrapper(place, encoding="utf-8")
        soften_stream(stream)
        stream.write("reused 3 · exact")
        stream.flush()
        assert place.getvalue() == written


@pytest.mark.parametrize("name", ["pipe.kvchat", "pipe.json"])
def test_a_pipe_that_nobody_writes_into_is_refused_and_not_waited_for(name: str) -> None:
    os.mkfifo(name)
    done = run_program("import", name)
    assert done.returncode == 7
    assert "not a regular file" in done.stderr
