"""SIGKILL at random moments costs no acknowledged turn or block, and leaves nothing behind."""

from pathlib import Path

import pytest

from tests.kill_child import ACTIONS
from tests.kill_loop import KILLS_PER_COLLECTION, KillLoop

pytestmark = pytest.mark.pure

ENOUGH = 500
"""So many kills come upon every action."""


@pytest.mark.parametrize(
    "num_kills", [KILLS_PER_COLLECTION + 5, pytest.param(ENOUGH, marks=pytest.mark.slow)]
)
def test_a_killed_process_keeps_every_promise(tmp_path: Path, num_kills: int) -> None:
    """Traps 24 and 25: a process without torch, during saves, demotions, imports, removal, collection."""
    loop = KillLoop(tmp_path)
    for number in range(num_kills):
        loop.kill_one(number)
    assert loop.checked["collections"] == num_kills // KILLS_PER_COLLECTION
    assert loop.checked["turns"] > 0
    assert loop.checked["blocks"] > 0
    if num_kills >= ENOUGH:
        assert set(loop.killed) >= set(ACTIONS), "a child was killed in the middle of each"
