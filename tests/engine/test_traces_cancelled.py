"""One request of many is cancelled before every step in turn; the books of all others stay in order."""

import random

import pytest

from tests.engine.cache.caches import full_group, sliding_group
from tests.engine.reference.lockstep import Lockstep, Setting
from tests.engine.reference.prefix_cache import everything, window

pytestmark = [pytest.mark.pure, pytest.mark.long]

NUM_REQUESTS = 6
SCRIPT_STEPS = 14


def small_loop(num_places: int, guess_rate: float) -> Lockstep:
    return Lockstep(
        Setting(
            groups=(full_group(), sliding_group(5)),
            reaches=(everything, window(5)),
            num_blocks=(13, 11),
            num_places=num_places,
            max_batch_tokens=6,
            guess_rate=guess_rate,
        )
    )


def scripted_step(loop: Lockstep, number: int) -> None:
    """Begin what the script has for this step: shared beginnings, a retry, forks, priorities."""
    text = [random.Random(1).randrange(2) for _ in range(30)]
    if number == 0:
        loop.submit(text[:18], max_tokens=7, priority=1)
        loop.submit([*text[:9], 1, 1, 0, 1], max_tokens=5, priority=1)
    elif number == 3:
        loop.submit(text[:18], max_tokens=4, priority=0)
    elif number in (6, 9):
        sequences = list(loop.manager.sequences.values())
        loop.fork(sequences[0])
        if number == 9:
            loop.save(sequences[-1])
    elif number == 11 and loop.idle:
        loop.go_on(loop.idle[-1], [*loop.idle[-1].token_ids, 0, 1, 1], max_tokens=6, priority=0)
    elif number == 14:
        loop.submit(text[:26], max_tokens=3, priority=2)
        loop.submit([0, *text[:17]], max_tokens=3, priority=0)


@pytest.mark.parametrize(("num_places", "leaves", "guess_rate"), [(6, False, 0.0), (0, True, 0.8)])
@pytest.mark.parametrize("which", range(1, NUM_REQUESTS + 1))
def test_a_request_can_be_cancelled_after_every_step(
    which: int, leaves: bool, num_places: int, guess_rate: float
) -> None:
    """Traps 7, 8, 12, 13 and 14: the others run as their reference says, and no block stays behind."""
    num_steps = run_script(small_loop(num_places, guess_rate))
    assert num_steps > SCRIPT_STEPS
    for cancelled_at in range(num_steps + 1):
        run_script(small_loop(num_places, guess_rate), which, cancelled_at, leaves=leaves)


def run_script(
    loop: Lockstep, which: int | None = None, cancelled_at: int | None = None, *, leaves: bool = False
) -> int:
    """Run the script to its end, cancel one request before one step, and return the number of steps."""
    number = 0
    while number <= SCRIPT_STEPS or loop.scheduler.has_work:
        scripted_step(loop, number)
        if number == cancelled_at:
            for job in [job for job in loop.expected.jobs if job.number == which]:
                loop.cancel(job)
                if leaves:
                    loop.release(loop.manager.sequences[job.sequence])
        loop.step()
        number += 1
        assert number < 200, "somebody starves"
    assert not loop.refused
    for sequence in list(loop.manager.sequences.values()):
        loop.release(sequence)
    assert [pool.num_used for pool in loop.manager.pools.values()] == [0, 0]
    return number
