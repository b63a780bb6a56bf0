"""What is a command, and which."""

import pytest

from kvchat.ui.commands import COMMANDS, completions, find_command, split_command

pytestmark = pytest.mark.pure


def names(line: str) -> list[str]:
    return [command.name for command in completions(line)]


def test_what_is_typed_behind_a_slash_narrows_the_offer_and_aliases_count() -> None:
    assert len(completions("/")) == len(COMMANDS)
    assert names("/s") == ["switch", "search", "set", "screen", "stop", "summary", "system"]
    assert [names(line) for line in ("/by", "/cl", "/tr", "/te")] == [["quit"], ["new"], ["tree"], ["temp"]]
    assert not any(names(line) for line in ("", "hello", "//help", "/fork now", "/help\nme", "/nothing"))


def test_a_command_is_found_by_the_names_that_its_help_tells_in_any_case() -> None:
    found = [find_command(name) for name in ("quit", "bye", "exit", "HELP", "nothing")]
    assert [command and command.name for command in found] == ["quit", "quit", "quit", "help", None]
    helps = {command.name: command.help for command in COMMANDS}
    assert helps["new"].endswith("(also /clear)")
    assert helps["quit"].endswith("(also /bye, /exit)")
    assert helps["stop"] == "stop the answer"


def test_a_line_is_split_into_name_and_argument() -> None:
    assert split_command("/fork  by boat ") == ("fork", "by boat")
    assert split_command("/help") == ("help", "")
