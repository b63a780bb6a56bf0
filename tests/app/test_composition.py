"""What is put together for one run."""

import tempfile
from pathlib import Path

import pytest

from kvchat.app.composition import opened
from kvchat.app.config import read_settings
from kvchat.app.engine_swap import EngineSwap

pytestmark = pytest.mark.pure


def test_a_conversation_that_is_kept_nowhere_is_pinned_and_deleted_without_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    def files() -> list[Path]:
        return [path for path in tmp_path.rglob("*") if path.is_file()]

    before = files()
    with opened(read_settings({}), EngineSwap(), temp=True) as kvchat:
        kept, gone = (kvchat.store.create_session(title=title).id for title in ("kept", "gone"))
        for session_id in (kept, gone):
            kvchat.store.pin(session_id, is_pinned=True)
        kvchat.store.pin(kept, is_pinned=False)
        kvchat.store.delete_session(gone)
        assert files() == before
