"""Arguments that a beginning may become."""

import pytest

from kvchat.ui.state.completion import arguments, cache_arguments, export_arguments

pytestmark = pytest.mark.pure

SOURCES = {"cache": cache_arguments, "export": export_arguments}


def offered(line: str) -> list[str]:
    return [one.usage for one in arguments(line, SOURCES)]


def test_what_begins_with_what_is_typed_comes_before_what_has_it_somewhere() -> None:
    assert offered("/cache ")[:3] == ["layers", "blocks", "freeze"]
    assert offered("/cache F")[0] == "freeze"
    assert offered("/cache format in") == ["format int8", "format int4", "format int2"]
    assert offered("/cache int4") == ["format int4", "format k=int8,v=int4"]


def test_nothing_is_offered_without_a_command_that_knows_its_arguments() -> None:
    assert not any(
        offered(line) for line in ("/cache", "/copy c", "/nothing x", "hello there", "/cache a\nb")
    )


def test_a_file_is_offered_with_each_ending_once_it_has_a_name() -> None:
    assert offered("/export notes") == ["notes.md", "notes.html", "notes.json", "notes.kvchat"]
    assert offered("/export notes.h") == ["notes.html"]
    assert offered("/export ") == offered("/export notes/") == []
