"""Exports of other programs become sessions of text; what cannot be read is counted or refused."""

import json
from pathlib import Path
from typing import Any

import pytest

from kvchat.errors import BundleError
from kvchat.session.bundle.foreign import ForeignConversation, read_transcripts
from kvchat.session.store import SessionStore
from kvchat.session.tree import Role

pytestmark = [pytest.mark.pure, pytest.mark.long]

Node = tuple[str | None, str | None, str]


def chatgpt(current: str, title: str = "Trip", **nodes: Node) -> dict[str, Any]:
    """A conversation of nodes (parent, role, text), as ChatGPT exports it."""
    mapping = {
        name: {
            "id": name,
            "parent": parent,
            "children": [],
            "message": None
            if role is None
            else {
                "author": {"role": role},
                "create_time": 100.0 + number,
                "content": {"content_type": "text", "parts": [text]},
            },
        }
        for number, (name, (parent, role, text)) in enumerate(nodes.items())
    }
    return {"title": title, "create_time": 99.5, "mapping": mapping, "current_node": current}


def read(tmp_path: Path, value: object) -> tuple[list[ForeignConversation], int]:
    path = tmp_path / "export.json"
    path.write_text(json.dumps(value))
    return read_transcripts(path)


def stored(tmp_path: Path, transcript: ForeignConversation) -> list[list[tuple[str, str]]]:
    """Adopt a transcript and return the paths of its branches, the active one first."""
    _, branches, _ = transcript
    store = SessionStore(tmp_path / "sessions.db")
    session = store.adopt(*transcript)
    assert session.active_branch == branches[0].name
    paths = [store.turns_to(branch.leaf_id) for branch in branches]
    store.close()
    return [[(turn.role.value, turn.text) for turn in path] for path in paths]


def test_a_chatgpt_conversation_keeps_its_branches_and_the_one_on_screen_is_active(tmp_path: Path) -> None:
    export = chatgpt(
        "a2",
        root=(None, None, ""),
        sys=("root", "system", "Be brief."),
        q1=("sys", "user", "Where to?"),
        a1=("q1", "assistant", "Oslo."),
        q2=("a1", "user", "And then?"),
        a2=("q2", "assistant", "Bergen."),
        a3=("q2", "assistant", "Home."),
    )
    (transcript,), skipped = read(tmp_path, [export])
    assert (transcript[0].title, transcript[0].system, skipped) == ("Trip", "Be brief.", 0)
    begin = [("user", "Where to?"), ("assistant", "Oslo."), ("user", "And then?")]
    assert stored(tmp_path, transcript) == [
        [*begin, ("assistant", "Bergen.")],
        [*begin, ("assistant", "Home.")],
    ]
    assert all(turn.token_ids is None and not turn.exact for turn in transcript[2])


def test_what_one_speaker_says_in_pieces_becomes_one_message(tmp_path: Path) -> None:
    export = chatgpt(
        "a2",
        q1=(None, "user", "Look it up."),
        a1=("q1", "assistant", "Searching."),
        tool=("a1", "tool", "results"),
        a2=("tool", "assistant", "Found it."),
        q2=("a2", "user", "Thanks."),
    )
    (transcript,), _ = read(tmp_path, [export])
    assert stored(tmp_path, transcript)[0] == [
        ("user", "Look it up."),
        ("assistant", "Searching.\n\nFound it."),
    ]
    assert transcript[2][-1].role is Role.USER


def test_llm_logs_become_one_session_per_conversation_oldest_message_first(tmp_path: Path) -> None:
    records = [
        {
            "id": str(number),
            "conversation_id": name,
            "conversation_name": f"about {name}",
            "prompt": f"{name} question {number}",
            "response": f"answer {number}",
            "system": "Be brief." if number == 1 else None,
            "datetime_utc": f"2026-01-0{number}T12:00:00",
        }
        for number, name in ((3, "x"), (2, "y"), (1, "x"))
    ]
    (first, second), _ = read(tmp_path, records)
    assert [first[0].title, second[0].title] == ["about x", "about y"]
    assert first[0].system == "Be brief."
    assert [turn.text for turn in first[2]] == ["x question 1", "answer 1", "x question 3", "answer 3"]
    assert [turn.text for turn in second[2]] == ["y question 2", "answer 2"]


def test_one_strange_conversation_keeps_no_other_out_and_is_counted(tmp_path: Path) -> None:
    good = chatgpt("q1", q1=(None, "user", "Hello?"))
    loop = chatgpt("a", a=("b", "user", "x"), b=("a", "user", "y"))
    empty = chatgpt("a", a=(None, None, ""))
    found, skipped = read(tmp_path, [loop, good, empty, {"mapping": 7}, {"mapping": {"a": 7}}])
    assert [session.title for session, _, _ in found] == ["Trip"]
    assert skipped == 4


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "no JSON"),
        ("[" * 200_000, "no JSON"),
        ("{}", "neither ChatGPT"),
        ("[1]", "neither ChatGPT"),
        ("[]", "no conversation"),
        ('[{"a": 1}]', "no conversation"),
        ('[{"mapping": {}}]', "no conversation"),
    ],
)
def test_a_file_of_no_known_form_is_refused(tmp_path: Path, text: str, reason: str) -> None:
    path = tmp_path / "export.json"
    path.write_text(text)
    with pytest.raises(BundleError, match=reason):
        read_transcripts(path)


def test_text_that_steers_a_terminal_is_kept_as_text_and_titles_are_one_line(tmp_path: Path) -> None:
    export = chatgpt("q", title="\x1b[2Ja\nb", q=(None, "user", "\x1b[31mred"))
    (transcript,), _ = read(tmp_path, [export])
    assert transcript[0].title == "[2Ja b"
    assert transcript[2][0].text == "\x1b[31mred"


@pytest.mark.parametrize("current", ["a0", "a1"])
def test_an_answer_that_another_begins_with_is_kept(tmp_path: Path, current: str) -> None:
    export = chatgpt(
        current,
        q=(None, "user", "Open today?"),
        a0=("q", "assistant", "Yes."),
        a1=("q", "assistant", "Yes.\n\nBut not on Sundays."),
    )
    (transcript,), _ = read(tmp_path, [export])
    answers = [path[-1][1] for path in stored(tmp_path, transcript)]
    assert answers[0] == ("Yes." if current == "a0" else "Yes.\n\nBut not on Sundays.")
    assert len(answers) == 2


def test_the_message_on_screen_is_kept_though_its_speaker_went_on_elsewhere(tmp_path: Path) -> None:
    export = chatgpt(
        "a1", q=(None, "user", "Look."), a1=("q", "assistant", "One."), a2=("a1", "assistant", "Two.")
    )
    (transcript,), _ = read(tmp_path, [export])
    assert [path[-1][1] for path in stored(tmp_path, transcript)] == ["One.", "One.\n\nTwo."]
