"""Random traces on which the real cache and scheduler are held to their references, step by step.

What is reused, who is admitted, who makes way, what each step computes and how many blocks are held must be
what `tests/engine/reference` says, whatever is asked, forked, cancelled, released or lost on the way. Where
nothing can have been evicted, reuse is known to the token; where something can, it has bounds.
"""

from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, event, given, settings
from hypothesis import strategies as st

from tests.engine.cache.caches import chunked_group, full_group, sliding_group
from tests.engine.reference.lockstep import Lockstep, Setting
from tests.engine.reference.prefix_cache import chunk, everything, window

pytestmark = [pytest.mark.pure, pytest.mark.long]

MAX_LEN = 36
MAX_BRANCHES = 7
WINDOWS = (1, 3, 4, 5, 7, 10)
CHUNKS = (3, 4, 6, 8)

GROUPS = st.one_of(
    st.just(((full_group(),), (everything,))),
    *(st.just(((full_group(), sliding_group(w)), (everything, window(w)))) for w in WINDOWS),
    *(st.just(((full_group(), chunked_group(c)), (everything, chunk(c)))) for c in CHUNKS),
)
Trace = list[tuple[tuple[Any, ...], int]]

pick = st.integers(0, 1000)
tokens = st.lists(st.integers(0, 1), min_size=1, max_size=12)


@st.composite
def setting(draw: st.DrawFn) -> Setting:
    """A pool that holds one request and a half, or one in which nothing is ever evicted."""
    groups, reaches = draw(GROUPS)
    is_roomy = draw(st.booleans())
    return Setting(
        groups=groups,
        reaches=reaches,
        num_blocks=(150, 150)[: len(groups)] if is_roomy else (draw(st.integers(10, 16)), 13)[: len(groups)],
        num_places=draw(st.sampled_from((0, 0, 5, 40))),
        max_batch_tokens=draw(st.integers(1, 20)),
        landing_rate=draw(st.sampled_from((1, 1, 2, 100))),
        guess_rate=draw(st.sampled_from((0.0, 0.5, 0.8, 0.95))),
    )


prompts = (pick, st.integers(0, MAX_LEN), tokens, st.integers(1, 9), st.integers(0, 2))
submit = st.tuples(st.just("submit"), *prompts)
go_on = st.tuples(st.just("go_on"), *prompts)
on_one = st.tuples(
    st.sampled_from(("fork", "cancel", "drop", "release", "retry", "save", "damage", "forget")), pick
)
traces = st.lists(
    st.tuples(st.one_of(submit, submit, go_on, on_one), st.integers(0, 7)), min_size=6, max_size=25
)
"""Actions, and after each of them some steps."""


def play(loop: Lockstep, action: tuple[Any, ...]) -> None:
    """Do what an action says, if there is anything to do it with."""
    name, which, *rest = action
    jobs, idle = loop.expected.jobs, loop.idle
    sequences = list(loop.manager.sequences.values())
    is_crowded = len(sequences) >= MAX_BRANCHES
    if name == "submit" and not is_crowded:
        keep, suffix, max_tokens, priority = rest
        text = loop.texts[which % len(loop.texts)][:keep] + suffix
        loop.submit(text[: MAX_LEN - max_tokens], max_tokens, priority)
    elif name == "go_on" and idle:
        keep, suffix, max_tokens, priority = rest
        sequence = idle[which % len(idle)]
        text = sequence.token_ids[: max(keep, sequence.computed_len)] + suffix
        if len(text) + max_tokens <= MAX_LEN:
            loop.go_on(sequence, text, max_tokens, priority)
    elif name == "retry" and idle:
        sequence = idle[which % len(idle)]
        loop.go_on(sequence, sequence.token_ids[: 1 + which % len(sequence.token_ids)], 3, 0)
    elif name == "fork" and sequences and not is_crowded:
        loop.fork(sequences[which % len(sequences)])
    elif name in ("cancel", "drop") and jobs:
        job = jobs[which % len(jobs)]
        loop.cancel(job)
        if name == "drop":
            loop.release(loop.manager.sequences[job.sequence])
    elif name == "release" and idle:
        loop.release(idle[which % len(idle)])
    elif name == "save" and idle:
        loop.save(idle[which % len(idle)])
    elif name == "forget":
        loop.forget_device()
    elif name == "damage" and loop.cache.tier.contents:
        stored = list(loop.cache.tier.contents)
        loop.cache.tier.unreadable.add(stored[which % len(stored)])


def follow(where: Setting, trace: Trace) -> None:
    loop = Lockstep(where)
    for action, num_steps in trace:
        play(loop, action)
        for _ in range(num_steps):
            loop.step()
    end(loop)


def end(loop: Lockstep) -> None:
    """Answer what is still open, let go of everything, and see that nothing is held any more."""
    loop.finish()
    assert not loop.refused, "what fits alone is never refused"
    for sequence in list(loop.manager.sequences.values()):
        loop.release(sequence)
    assert all(pool.num_used == 0 for pool in loop.manager.pools.values())
    event("something may have been evicted" if loop.may_have_evicted else "nothing was evicted")
    event(f"requests: {min(len(loop.ended), 10)}")
    event(f"right guesses: {min(loop.num_accepted // 5 * 5, 20)}")
    event(f"requests that waited for stored blocks: {min(loop.num_begun, 5)}")


NO_EXPLANATION = [phase for phase in Phase if phase is not Phase.explain]
"""It would run a failing trace thousands of times more."""
SETTINGS = settings(
    phases=NO_EXPLANATION, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)


@settings(SETTINGS, max_examples=60)
@given(where=setting(), trace=traces)
def test_cache_and_scheduler_do_what_their_references_say(where: Setting, trace: Trace) -> None:
    """Traps 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 18, 22 and 28."""
    follow(where, trace)


@pytest.mark.slow
@settings(SETTINGS, max_examples=20_000, derandomize=False)
@given(where=setting(), trace=traces)
def test_many_traces_do_what_their_references_say(where: Setting, trace: Trace) -> None:
    follow(where, trace)
