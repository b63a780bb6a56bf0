"""A text in the person's own editor: what can go wrong is told, and nothing is lost."""

from contextlib import nullcontext
from pathlib import Path

import pytest

from kvchat.errors import UsageError
from kvchat.ui.terminal.editor import edited

pytestmark = pytest.mark.pure


def test_an_editor_or_a_place_for_its_file_that_is_not_there_is_told_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UsageError, match="the editor /no/such is not there; set EDITOR"):
        edited("words", nullcontext(), {"EDITOR": "/no/such", "PATH": "/usr/bin:/bin"})
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "gone"))
    with pytest.raises(UsageError, match=r"cannot be given to the editor.*TMPDIR"):
        edited("words", nullcontext(), {"EDITOR": "true", "PATH": "/usr/bin:/bin"})


def test_half_a_character_is_no_reason_to_end_the_interface() -> None:
    environ = {"EDITOR": "true", "PATH": "/usr/bin:/bin"}
    assert edited("one \ud800 two", nullcontext(), environ) == "one ? two"
