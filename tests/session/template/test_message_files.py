"""Files in messages, and what a conversation is called that begins with one."""

import pytest

from kvchat.session.database.statements import title_of
from kvchat.session.template.message_files import split_files, with_files

pytestmark = pytest.mark.pure

FILES = (("notes.txt", "one\n</file>\n\ntwo"), ("empty", ""))


def test_files_and_words_are_told_apart() -> None:
    assert split_files(with_files(FILES, "What is it?")) == (FILES, "What is it?")
    assert split_files("What is it?") == ((), "What is it?")


def test_a_conversation_that_begins_with_a_file_is_called_by_its_words() -> None:
    assert title_of(with_files(FILES, "\nWhat is it?\nAnd why?")) == "What is it?"
    assert title_of(with_files(FILES)) == "notes.txt, empty"
    assert title_of('<file name="a" lines="9">\nnot closed') == '<file name="a" lines="9">'
