"""Columns in terminals of any width, lines broken between words, and whole lines in a pipe."""

import json
import re
from contextlib import closing
from io import StringIO
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from kvchat.app.open_store import open_store
from kvchat.cli.main import run
from kvchat.cli.output.wrap import GAP, beside
from kvchat.cli.parser.options import PlaceOptions
from kvchat.session.tree import MAIN
from tests.cli.printed import Terminal, in_pipe, on_terminal
from tests.engine.formats.test_kv_size import DEEPSEEK_V3
from tests.session.turns import exchange

pytestmark = [pytest.mark.pure, pytest.mark.long]

WIDE = "長い会話の題名はここにあり、漢字は二つの桁を占める、それでも列は揃う"
LONG = " ".join(["a question that goes on and on"] * 4)
TITLES = ("demo", WIDE, LONG, "Trip to Oslo 🚂 by train")
WIDTHS = [200, 80, 60, 40, 24]


@pytest.fixture
def titles(home: Path) -> tuple[str, ...]:
    """Titles of sessions that are there, one of them pinned and with two branches."""
    with closing(open_store(PlaceOptions().settings())) as store:
        for title in TITLES:
            session = store.create_session(title=title)
            exchange(store, store.branch(session.id, MAIN), "one", "two")
        store.pin(session.id, is_pinned=True)
        store.create_branch(session.id, leaf_id=store.branch(session.id, MAIN).leaf_id)
    return TITLES


def words_of(lines: list[str]) -> list[str]:
    return " ".join(lines).split()


def places(lines: list[str], mark: str) -> set[int]:
    """Return the cells where a second column begins that stands beside a first one."""
    found = (re.search(rf"\S {{2,}}({re.escape(mark)})", line) for line in lines)
    return {cell_len(match.string[: match.start(1)]) for match in found if match is not None}


@pytest.mark.parametrize("width", WIDTHS)
def test_a_terminal_shows_every_session_in_columns_and_cuts_titles_alone(
    titles: tuple[str, ...], width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    piped = shown(["sessions"], None, monkeypatch)
    lines = shown(["sessions"], width, monkeypatch)
    assert max(map(cell_len, lines)) <= width
    figures = [line[line.rindex("(") :] for line in piped]
    whole = " ".join(words_of(lines))
    assert all(whole.count(one) == figures.count(one) for one in figures), "what a session has is never cut"
    beginning = [line for line in lines if LONG not in line and cell_len(line) < width]
    assert len(places(beginning, "(")) <= 1, "all others end at the edge"
    for title in titles:
        cut = title[: title.index(" ") if " " in title else 3]
        assert title in whole or (cut in whole and "…" in whole)
    if width == 200:
        assert all(title in whole for title in titles)
        assert len(lines) == len(titles)


def test_at_80_columns_what_a_session_has_begins_at_one_cell_and_one_that_has_more_pushes_no_other(
    titles: tuple[str, ...],
) -> None:
    lines = on_terminal(80, "sessions")
    assert len(lines) == len(titles) + 1
    assert lines[0].endswith(titles[-1]), "whole, with a line of its own"
    assert lines[1] == " " * 16 + "(2 turns, 6 tokens, pinned, 2 branches)"
    assert places(lines[2:], "(") == {80 - len("(2 turns, 6 tokens)")}


def test_a_pipe_gets_every_title_whole_and_a_line_for_each(titles: tuple[str, ...]) -> None:
    lines = in_pipe("sessions")
    assert len(lines) == len(titles)
    for title in titles:
        assert sum(f"  {title}  " in line for line in lines) == 1
    short = [line for line in lines if LONG not in line]
    assert len(places(short, "(")) == 1, "the long one moves the column for nobody else"


@pytest.mark.parametrize("width", WIDTHS)
def test_every_setting_and_where_it_came_from_is_there_at_any_width(
    home: Path, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    home.mkdir()
    (home / "config.toml").write_text(f'system = "{WIDE}"\n[sampling]\nseed = 3\n')
    monkeypatch.setenv("KVCHAT_MODEL", f"a model called {LONG}")
    lines = shown(["config", "show"], width, monkeypatch)
    assert words_of(lines) == words_of(shown(["config", "show"], None, monkeypatch))
    assert too_wide(lines, width) == [], "a path alone stays whole, so that it can be copied"
    if width == 200:
        long = (LONG, WIDE, "paths.")
        assert len(places([line for line in lines if not any(one in line for one in long)], "# ")) == 1


rows = st.tuples(
    st.text(st.sampled_from("ab界 "), max_size=60).map(str.strip),
    st.text(st.sampled_from("cd界 "), min_size=1, max_size=40).map(str.strip),
)


@given(st.lists(rows, max_size=8), st.none() | st.integers(20, 120))
def test_a_table_loses_no_word_and_its_second_column_has_one_place(
    table: list[tuple[str, str]], width: int | None
) -> None:
    lines = list(beside(table, width, 16))
    assert words_of(lines) == words_of([word for row in table for word in row])
    if width is None:
        assert len(lines) == len(table)
        column = max((cell_len(first) for first, _ in table if cell_len(first) + len(GAP) <= 100), default=0)
        for line, (first, second) in zip(lines, table, strict=True):
            assert line == first + " " * (max(column, cell_len(first)) - cell_len(first)) + GAP + second
    else:
        assert too_wide(lines, width) == []


@pytest.fixture
def config(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(DEEPSEEK_V3))
    return tmp_path / "config.json"


def shown(words: list[str], width: int | None, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the lines that a command prints on a terminal of this width; None: into a pipe."""
    with monkeypatch.context() as patch:
        stream = StringIO() if width is None else Terminal()
        patch.setenv("COLUMNS", str(width or 80))
        patch.setattr("sys.stdout", stream)
        assert run(words) == 0
    return stream.getvalue().splitlines()


def too_wide(lines: list[str], width: int) -> list[str]:
    """Return the lines that a terminal would break inside a word, or that could have been broken."""
    return [line for line in lines if cell_len(line) > width and len(line.split()) > 1]


@pytest.mark.parametrize("width", [80, 60, 24, 1])
@pytest.mark.parametrize("words", ["plan {config}", "models list", "models show starter"])
def test_no_line_is_wider_than_the_terminal_and_no_word_is_lost(
    words: str, width: int, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = words.format(config=config).split()
    piped = shown(command, None, monkeypatch)
    assert max(map(cell_len, piped)) > 40
    lines = shown(command, width, monkeypatch)
    assert too_wide(lines, max(width, 20)) == []
    assert words_of(lines) == words_of(piped)
