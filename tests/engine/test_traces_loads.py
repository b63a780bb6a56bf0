"""Random traces in which most of what is asked is stored: requests wait for blocks while others compute, are
cancelled, need the room or ask for the same, and the real loading is held to its reference, step by step.
"""

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from tests.engine.reference.lockstep import Lockstep, Setting
from tests.engine.test_traces import GROUPS, MAX_LEN, SETTINGS, Trace, end, pick, play

pytestmark = [pytest.mark.pure, pytest.mark.long]


@st.composite
def setting(draw: st.DrawFn) -> Setting:
    """A pool that holds one request and a half, or some; blocks come slower than prompts are computed."""
    groups, reaches = draw(GROUPS)
    return Setting(
        groups=groups,
        reaches=reaches,
        num_blocks=(draw(st.integers(10, 24)), draw(st.integers(13, 20)))[: len(groups)],
        num_places=draw(st.sampled_from((0, 5, 40))),
        max_batch_tokens=draw(st.integers(4, 20)),
        landing_rate=draw(st.sampled_from((0, 1, 1, 2))),
    )


ask = st.tuples(
    st.just("submit"),
    pick,
    st.integers(12, MAX_LEN),
    st.lists(st.integers(0, 1), min_size=1, max_size=4),
    st.integers(1, 6),
    st.integers(0, 2),
)
meet = st.tuples(st.sampled_from(("cancel", "cancel", "drop", "release", "save", "damage", "forget")), pick)
traces = st.lists(st.tuples(st.one_of(ask, meet), st.integers(0, 3)), min_size=5, max_size=16)


def store(loop: Lockstep, texts: list[list[int]]) -> None:
    """Answer some conversations, write them to the slower tier and clear the device."""
    for text in texts:
        loop.submit(text, max_tokens=3, priority=1)
        loop.finish()
    for sequence in list(loop.manager.sequences.values()):
        loop.save(sequence)
        loop.release(sequence)
    loop.forget_device()


def follow(where: Setting, texts: list[list[int]], trace: Trace) -> None:
    loop = Lockstep(where)
    store(loop, texts)
    for action, num_steps in trace:
        loading = [shipment.job for shipment in loop.shipments.known if not shipment.flight.is_over]
        play(loop, action)
        if any(job in loop.ended for job in loading):
            event("one was cancelled while it loaded")
        for _ in range(num_steps):
            loop.step()
    end(loop)


stored = st.lists(st.lists(st.integers(0, 1), min_size=10, max_size=26), min_size=1, max_size=3)


@settings(SETTINGS, max_examples=160)
@given(where=setting(), texts=stored, trace=traces)
def test_what_is_stored_comes_whatever_happens_meanwhile(
    where: Setting, texts: list[list[int]], trace: Trace
) -> None:
    """Traps 7, 12, 13, 21 and 22: a load meets cancels, damage, pressure and requests for the same blocks."""
    follow(where, texts, trace)


@pytest.mark.slow
@settings(SETTINGS, max_examples=10_000, derandomize=False)
@given(where=setting(), texts=stored, trace=traces)
def test_what_is_stored_comes_in_many_traces(where: Setting, texts: list[list[int]], trace: Trace) -> None:
    follow(where, texts, trace)
