"""SIGKILL at random moments costs no acknowledged turn or block, and leaves nothing behind."""

from pathlib import Path
from typing import Any

import pytest

from tests.kill_child import ACTIONS, TAKES_FROM_OTHERS
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


ENOUGH_OF_EACH = 100


@pytest.mark.parametrize("is_long", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_kill_while_blocks_make_room_costs_nothing_that_is_kept_and_leaves_no_orphan(
    tmp_path: Path, is_long: bool
) -> None:
    """Traps 13 and 25: what is there is right, and never more than the limit."""
    loop = KillLoop(tmp_path, limit_bytes=20_000)
    for number in range(ENOUGH_OF_EACH if is_long else 3):
        loop.kill_one(number)
    assert loop.checked["turns"] > 0
    if is_long:
        assert min(loop.checked["gone"], loop.checked["kept"]) > 0
        assert set(loop.killed) >= set(ACTIONS) - set(TAKES_FROM_OTHERS)


@pytest.mark.parametrize("is_long", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("options", [{"num_processes": 2}, {"is_encrypted": True}], ids=["two", "encrypted"])
def test_two_processes_at_once_and_an_encrypted_home_keep_their_promises_too(
    tmp_path: Path, options: dict[str, Any], is_long: bool
) -> None:
    loop = KillLoop(tmp_path, **options)
    for number in range(ENOUGH_OF_EACH if is_long else 1):
        loop.kill_one(number)
    assert loop.killed.total() == (ENOUGH_OF_EACH if is_long else 1) * options.get("num_processes", 1)
    assert loop.checked["turns"] > 0
