"""Files in messages."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvchat.errors import UsageError
from kvchat.text.attached_files import (
    MOST_BYTES,
    Attachment,
    before_message,
    looks_binary,
    read_attachment,
    shown_message,
    split_message,
    take_out_files,
    tidy,
)
from kvchat.ui.state.completion import path_at_end, path_choices

pytestmark = pytest.mark.pure

TEXTS = st.text(alphabet='ab\n<>/file"= ', max_size=60).map(tidy)


@given(st.lists(TEXTS, max_size=3), st.text(max_size=30))
def test_files_and_words_are_told_apart_whatever_the_files_hold(texts: list[str], words: str) -> None:
    files = tuple(Attachment(name=f"{number}.txt", text=text) for number, text in enumerate(texts))
    assert split_message(before_message(files) + words)[0][: len(files)] == files


def test_a_message_shows_a_line_for_each_file() -> None:
    text = before_message([Attachment(name="a.txt", text="x\n</file>\n\ny")]) + "What?"
    assert shown_message(text) == "▤ a.txt · 12 B · 4 lines\nWhat?"
    assert shown_message('<file name="a" lines="9">\nnot closed') == '<file name="a" lines="9">\nnot closed'


def test_what_is_no_text_file_is_refused_and_text_of_every_language_is_text(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "long").write_bytes(b"a" * (MOST_BYTES + 1))
    (tmp_path / "binary").write_bytes(b"\x00\x01")
    (tmp_path / "odd").write_bytes(b"\xff\xfe\xfd" * 50)
    for name, what in (
        ("none", "is not there"),
        ("~nobody-has-this-name/a.txt", "is not there"),
        (".", "a directory"),
        ("pipe", "no file"),
        ("long", "more"),
        ("binary", "is no text"),
        ("odd", "is no text"),
    ):
        with pytest.raises(UsageError, match=what):
            read_attachment(Path(name) if name.startswith("~") else tmp_path / name)
    assert not looks_binary("漢字 שלום \t\x1b[31mred\n" * 20)


def test_the_path_that_is_typed_stands_behind_an_at_sign_at_the_end() -> None:
    assert path_at_end("see @src/ma") == "src/ma"
    assert path_at_end("/attach my file") == "my file"
    assert path_at_end("me@home") is None
    assert path_at_end("@a b") is None


def test_paths_are_completed_directories_first_and_hidden_ones_on_asking(tmp_path: Path) -> None:
    for name in ("beta.txt", ".secret"):
        (tmp_path / name).touch()
    (tmp_path / "zeta").mkdir()
    found = [one.usage.removeprefix(f"{tmp_path}/") for one in path_choices(f"{tmp_path}/")]
    assert found == ["zeta/", "beta.txt"]
    assert [one.path for one in path_choices(f"{tmp_path}/.s")] == [f"{tmp_path}/.secret"]
    assert path_choices(f"{tmp_path}/none/") == path_choices("~nobody-has-this-name/") == ()


@given(
    st.lists(
        st.tuples(st.lists(st.text("ab\n<>", max_size=12), max_size=3), st.text("xy \n", max_size=12)),
        min_size=1,
        max_size=3,
    )
)
def test_files_of_messages_that_come_back_together_are_all_found(
    messages: list[tuple[list[str], str]],
) -> None:
    texts = []
    files = []
    for number, (names, words) in enumerate(messages):
        attached = tuple(Attachment(name=f"{number}-{at}", text=text) for at, text in enumerate(names))
        files += attached
        texts.append(before_message(attached) + words)
    found, words = take_out_files("\n".join(texts))
    assert list(found) == files
    assert words == "\n".join(words for _, words in messages)
