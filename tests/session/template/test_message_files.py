"""What a conversation is called that begins with a file."""

import pytest

from kvchat.session.database.statements import title_of
from kvchat.session.template.message_files import with_files

pytestmark = pytest.mark.pure

FILES = (("notes.txt", "one\n</file>\n\ntwo"), ("empty", ""))


def test_a_conversation_that_begins_with_a_file_is_called_by_its_words() -> None:
    assert title_of(with_files(FILES, "\nWhat is it?\nAnd why?")) == "What is it?"
    assert title_of(with_files(FILES)) == "notes.txt, empty"
    assert title_of('<file name="a" lines="9">\nnot closed') == '<file name="a" lines="9">'
