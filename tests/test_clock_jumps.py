"""A clock that is set forward and back between processes costs no word and no order."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.patience import PATIENCE_S

pytestmark = [pytest.mark.pure, pytest.mark.long]

ROOT = Path(__file__).parent.parent
YEAR_S = 365 * 86_400


def under_a_clock(shift_s: float, home: Path, title: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "tests.clock_child", str(shift_s), str(home), title]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_a_clock_that_jumps_by_a_year_loses_nothing(tmp_path: Path) -> None:
    """Saving, collection, the budget of a day, the daily copy, and the order of sessions."""
    used: list[str] = []
    turns: dict[str, int] = {}
    total, blocks = 0, 0
    for number, shift_s in enumerate([0, YEAR_S, 0, -YEAR_S, 0, YEAR_S, -YEAR_S]):
        title = f"session {number % 4}"
        is_new = title not in turns
        found = under_a_clock(shift_s, tmp_path / "home", title)
        used = [title, *(other for other in used if other != title)]
        turns[title] = turns.get(title, 0) + 2
        blocks += 2 * is_new
        assert found["listed"] == used, "last used first"
        assert found["turns"] == turns
        assert found["refusals"] == 0
        assert found["blocks"] == blocks, "what is referenced stays, whatever its age"
        assert found["total"] >= found["today"]
        assert found["total"] > total or not is_new
        total = found["total"]
    assert len(list((tmp_path / "home").glob("sessions.db.backup"))) == 1
