"""Sequences of emoji take on the screen the cells that the layout gives them, in every part of the window."""

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from kvchat.text.fit_text import drawable
from tests.terminal import terminal
from tests.ui.harness import Window, window
from tests.ui.scripted import Answer

EMOJI = "👩‍💻 ❤️ 🏳️‍🌈 👍🏽 1️⃣ ☺️"
SEQUENCE = re.compile("[\u200d\ufe0e\ufe0f\U0001f3fb-\U0001f3ff]")
PARTS = st.sampled_from([*EMOJI.split(), "👨‍👩‍👧‍👦", "🧑🏽‍❤️‍💋‍🧑🏻", "🏴󠁧󠁢󠁥󠁮󠁧󠁿", "🇳🇴", "漢字", "é", "a", " "])


@pytest.mark.pure
@given(st.lists(PARTS).map("".join))
def test_what_is_drawn_of_a_text_takes_its_cells_whoever_counts_them(text: str) -> None:
    assert sum(map(cell_len, drawable(text))) == cell_len(drawable(text)) == cell_len(text)
    assert not SEQUENCE.search(drawable(text))


@pytest.mark.pure
@pytest.mark.parametrize("text", ["plain", "漢字 é", "🇳🇴", "ක්‍ෂ"])
def test_text_without_sequences_of_emoji_is_drawn_as_it_is(text: str) -> None:
    assert drawable(text) == text


@pytest.mark.tui
async def test_no_part_of_the_window_draws_a_sequence_and_what_was_said_keeps_it(tmp_path: Path) -> None:
    answer = Answer(text=f"# {EMOJI}\n\n- {EMOJI * 9}\n\n|{EMOJI}|\n|-|\n|`{EMOJI}`|")
    async with window(tmp_path, answer) as shown:
        await shown.paste(EMOJI)
        await shown.say("")
        await shown.until_sent(EMOJI)
        await shown.paste(EMOJI)
        places = ("#sessions", "#heading", ".question", ".answer", "#prompt")
        await shown.until(lambda: all("👩" in text_at(shown, place) for place in places))
        assert not SEQUENCE.search(shown.text)
        assert {sum(map(cell_len, line)) for line in drawn_lines(shown)} == {shown.app.size.width}
        assert shown.answers[0].turn.text == answer.text
        assert shown.screen.prompt.text == EMOJI


@pytest.mark.tui
def test_a_terminal_that_counts_code_points_has_the_panel_where_it_belongs(tmp_path: Path) -> None:
    arguments = ["-m", "tests.ui.run_scripted", str(tmp_path / "log")]
    with terminal(arguments, size=(140, 30)) as shown:
        shown.until_shown("one cell =")
        edge = column_of_edge(shown.text)
        shown.type(f"\x1b[200~{EMOJI} for you\x1b[201~\r\x1b[200~{EMOJI} again\x1b[201~")
        shown.until(lambda: shown.text.count("for you") >= 3 and "again" in shown.text)
        shown.until_shown("By train")
        assert column_of_edge(shown.text) == edge


def text_at(shown: Window, selector: str) -> str:
    area = shown.screen.query(selector).first().region
    return "\n".join(shown.text.splitlines()[area.y : area.bottom])


def drawn_lines(shown: Window) -> list[str]:
    return [strip.text for strip in shown.app.screen._compositor.render_strips()]


def column_of_edge(text: str) -> set[int]:
    """Return the cell where the lines above the prompt have the edge of the panel on their right."""
    return {cell_len(line[: line.rfind("│")]) for line in text.splitlines()[:20]}
