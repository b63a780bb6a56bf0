"""A signal between the beginning of a transaction and its block."""

import gc
import sys
from pathlib import Path
from typing import Any

import pytest

from kvchat.session.database.database import Database

pytestmark = pytest.mark.pure


def test_a_transaction_that_never_came_to_its_block_is_let_go_in_silence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    complaints: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", complaints.append)
    database = Database(tmp_path / "sessions.db")
    writing = database.write()
    writing.__enter__()
    database.close()
    del writing
    gc.collect()
    assert not complaints
