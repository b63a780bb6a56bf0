"""Documents come before the question, and what is no text is refused."""

from io import BytesIO
from pathlib import Path

import pytest

from kvchat.cli.commands.ask.prompt import read_prompt
from kvchat.errors import UsageError

pytestmark = pytest.mark.pure


def test_piped_input_and_files_come_before_the_question(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("from a file\n")
    prompt = read_prompt(["what", "is", "it?"], [tmp_path / "a.txt"], BytesIO(b"from a pipe\n"))
    assert prompt == "from a pipe\n\nfrom a file\n\nwhat is it?"


def test_a_dash_puts_piped_input_at_its_place(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("from a file")
    prompt = read_prompt(["why?"], [tmp_path / "a.txt", Path("-")], BytesIO(b"from a pipe"))
    assert prompt == "from a file\n\nfrom a pipe\n\nwhy?"


def test_two_questions_about_one_document_begin_alike() -> None:
    one, other = (
        read_prompt([word], [], BytesIO(b"  a document\n  indented\n")) for word in ("one", "other")
    )
    assert one.removesuffix("one") == other.removesuffix("other") == "  a document\n  indented\n\n"


def test_piped_input_alone_is_a_question() -> None:
    assert read_prompt([], [], BytesIO(b"\xef\xbb\xbfhello\r\n")) == "hello"


@pytest.mark.parametrize("piped", [None, b"", b" \n"])
def test_nothing_to_ask_is_refused(piped: bytes | None) -> None:
    with pytest.raises(UsageError, match="nothing to ask"):
        read_prompt([" "], [], None if piped is None else BytesIO(piped))


@pytest.mark.parametrize("data", [b"\xff\xfe", b"a\x00b"])
def test_what_is_no_text_is_refused_by_name(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "picture").write_bytes(data)
    with pytest.raises(UsageError, match=r"picture is not .*text"):
        read_prompt(["what is it?"], [tmp_path / "picture"], None)
    with pytest.raises(UsageError, match=r"standard input is not .*text"):
        read_prompt(["what is it?"], [], BytesIO(data))


def test_a_dash_without_a_pipe_is_refused() -> None:
    with pytest.raises(UsageError, match="which is a terminal"):
        read_prompt(["what is it?"], [Path("-")], None)


def test_bytes_of_the_command_line_that_are_no_text_are_replaced() -> None:
    assert read_prompt(["caf\udce9"], [], None) == "caf\ufffd"
