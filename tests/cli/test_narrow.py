"""Lines that are wider than a terminal are broken between words; a pipe gets them as they are."""

import json
from io import StringIO
from pathlib import Path

import pytest
from rich.cells import cell_len

from kvchat.cli.main import run
from tests.engine.formats.test_kv_size import DEEPSEEK_V3

pytestmark = pytest.mark.pure


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True


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


def words_of(lines: list[str]) -> list[str]:
    return " ".join(lines).split()


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
