"""Words of the command line to values: as Typer reads them, and refused with exit code 2."""

import pytest

from tests.cli.command_line import Run

pytestmark = pytest.mark.pure


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["sessions", "search", "--limit", "many", "x"], "'many' is not a valid whole number"),
        (["sessions", "search", "--limit", "1.5", "x"], "whole number"),
        (["sessions", "search", "--limit", "0", "x"], "at least 1"),
        (["ask", "--temperature", "hot", "x"], "'hot' is not a valid number"),
        (["encrypt", "on", "--cost", "21"], "at most 20"),
        (["sessions", "search"], "WORD"),
    ],
)
def test_what_is_no_value_is_refused_with_the_option_it_was_for(
    words: list[str], told: str, run: Run
) -> None:
    message = run.err(*words, code=2)
    assert told in message
    assert len(words) == 2 or next(word for word in words if word.startswith("--")) in message


def test_paths_numbers_and_lists_arrive(run: Run) -> None:
    assert run("sessions", "search", "--limit", "3", "--data-dir", "elsewhere", "two", "words")[0] == 0
    shown = run.out("config", "show", "--temperature", "0.5", "-o", "seed=1", "-o", "top_k=2")
    assert "sampling.temperature = 0.5" in shown
    assert "sampling.seed = 1" in shown
    assert "sampling.top_k = 2" in shown
