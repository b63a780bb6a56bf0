"""When and how much is drafted, on steps whose times are made up, and the estimates that this follows."""

from collections.abc import Callable, Sequence

import pytest

from kvchat.engine.api.ids import RequestId
from kvchat.engine.sampling.speculative.ngram_proposer import (
    LEAST,
    MOST_DRAFTED,
    PRIORS,
    READ_AT_ONCE,
    WINDOW,
    AcceptanceRate,
    NgramProposer,
    StepCosts,
)
from kvchat.engine.sequences.batch_plan import Batch, Chunk
from tests.engine.assembly import entry_of
from tests.engine.cache.caches import Cache, full_group

pytestmark = pytest.mark.pure

CYCLE = list(range(30))
CHEAP: Callable[[int], float] = lambda num_drafted: 1 + 0.02 * num_drafted  # noqa: E731
DEAR: Callable[[int], float] = lambda num_drafted: 1.0 + num_drafted  # noqa: E731


class Steps:
    """Runs steps of sequences whose next tokens are known, and keeps the books of time and tokens.

    Args:
        cost: drafted tokens of a step → its time.
    """

    def __init__(self, cost: Callable[[int], float], *texts: Sequence[int]) -> None:
        """`texts`: prompt and answer of each sequence; a tenth of it is prompt."""
        self.cost = cost
        self.drafts = NgramProposer()
        self.texts = {RequestId(number): list(text) for number, text in enumerate(texts, start=1)}
        cache = Cache(full_group())
        self.entries = [
            entry_of(number, cache.open(()), text[: len(text) // 10], len(text))
            for number, text in self.texts.items()
        ]
        for entry in self.entries:
            entry.num_generated = 1
        self.seconds = 0.0
        self.num_tokens = 0
        self.lengths: list[int] = []
        """Drafted tokens of each step."""

    def step(self) -> None:
        proposed = self.drafts.propose(self.entries, 0, 64)
        chunks = []
        for entry in self.entries:
            draft = proposed.get(entry.id, ())
            assert len(draft) <= MOST_DRAFTED
            known = len(entry.sequence.token_ids)
            chunks.append(Chunk(entry.id, entry.sequence.id, known - 1, (0, *draft), True, len(draft)))
            right = self.texts[entry.id][known : known + 1 + len(draft)]
            num_right = next((n for n, token in enumerate(draft) if token != right[n]), len(draft))
            entry.sequence.token_ids += right[: num_right + 1]
            self.num_tokens += num_right + 1
        batch = Batch(tuple(chunks), (), (), ())
        self.lengths.append(batch.num_drafted)
        self.seconds += self.cost(batch.num_drafted)
        self.drafts.observe(batch, self.cost(batch.num_drafted))

    def run(self, num_tokens: int) -> float:
        """Return tokens per second over so many tokens; without drafts each sequence brings one in each."""
        seconds, done = self.seconds, self.num_tokens
        while self.num_tokens < done + num_tokens:
            self.step()
        return (self.num_tokens - done) / (self.seconds - seconds)


def scattered(length: int) -> list[int]:
    """Return a text in which pairs of tokens come again, and what follows them never does."""
    return [number // 3 if number % 3 == 2 else number % 3 + 100_000 for number in range(length)]


def test_where_text_repeats_and_rows_are_cheap_drafts_become_long() -> None:
    steps = Steps(CHEAP, CYCLE * 60)
    steps.run(200)
    assert steps.run(1000) > 8
    assert max(steps.lengths) == MOST_DRAFTED


def test_where_rows_are_dear_next_to_nothing_is_lost() -> None:
    steps = Steps(DEAR, CYCLE * 400)
    steps.run(1500)
    assert steps.run(8000) > 0.985
    assert sum(steps.lengths) > 0, "now and then it is tried again"


def test_where_guesses_are_wrong_next_to_nothing_is_lost() -> None:
    text = scattered(12_000)
    dear_enough: Callable[[int], float] = lambda num_drafted: 1.3 + 0.1 * num_drafted if num_drafted else 1  # noqa: E731
    steps = Steps(dear_enough, text)
    steps.run(1000)
    assert steps.run(8000) > 0.97


def test_drafts_begin_when_they_come_to_pay() -> None:
    steps = Steps(DEAR, CYCLE * 600)
    steps.run(3000)
    steps.cost = CHEAP
    steps.run(6000)
    assert steps.run(1000) > 3


def test_the_first_steps_of_an_engine_are_plain() -> None:
    """Without them nobody knows what drafts cost."""
    steps = Steps(CHEAP, CYCLE * 60)
    for _ in range(3):
        steps.step()
    assert steps.lengths == [0, 0, 0]


def test_what_is_most_probably_right_is_drafted_first() -> None:
    steps = Steps(CHEAP, CYCLE * 60, scattered(1800))
    for _ in range(40):
        steps.step()
    proposed = steps.drafts.propose(steps.entries, 0, 8)
    assert len(proposed[RequestId(1)]) >= 7
    assert sum(map(len, proposed.values())) <= 8


def test_nothing_is_drafted_beside_prompts_or_behind_the_end_of_an_answer() -> None:
    steps = Steps(CHEAP, CYCLE * 60)
    steps.run(200)
    (entry,) = steps.entries
    assert steps.drafts.propose([entry], 0, 64)
    assert not steps.drafts.propose([entry], 5, 64)
    assert not steps.drafts.propose([entry], 0, 0)
    entry.max_tokens = entry.num_generated + 3
    assert len(steps.drafts.propose([entry], 0, 64)[entry.id]) <= 2
    entry.max_tokens = entry.num_generated + 1
    assert not steps.drafts.propose([entry], 0, 64)


def test_a_long_prompt_is_indexed_over_several_steps() -> None:
    steps = Steps(CHEAP, CYCLE * READ_AT_ONCE)
    (entry,) = steps.entries
    steps.texts[entry.id] += CYCLE * READ_AT_ONCE
    num_steps = 0
    while not max(steps.lengths, default=0):
        steps.step()
        num_steps += 1
    assert num_steps >= entry.prompt_len // READ_AT_ONCE


def test_a_sequence_that_has_ended_is_forgotten() -> None:
    steps = Steps(CHEAP, CYCLE * 60)
    steps.run(100)
    (entry,) = steps.entries
    steps.drafts.forget(entry.id)
    assert not steps.drafts._texts


def fed(acceptance: AcceptanceRate, match_len: int, is_right: bool, num_times: int) -> AcceptanceRate:
    for _ in range(num_times):
        acceptance.observe(match_len, is_right)
    return acceptance


def test_it_goes_to_what_is_seen_and_follows_when_that_changes() -> None:
    estimate = fed(AcceptanceRate(), 2, True, 100)
    assert estimate.probability(2) > 0.95
    fed(estimate, 2, False, 100)
    assert estimate.probability(2) < 0.05


def test_long_agreement_is_told_from_short() -> None:
    estimate = fed(fed(AcceptanceRate(), 2, False, 50), 12, True, 50)
    assert estimate.probability(2) < 0.2
    assert estimate.probability(12) > 0.9


def test_before_anything_is_seen_longer_agreement_is_believed_more() -> None:
    assert [AcceptanceRate().probability(match_len) for match_len in (2, 3, 4, 6, 10, 18)] == list(PRIORS)
    assert AcceptanceRate().probability(10_000) == PRIORS[-1]


def test_a_new_sequence_begins_with_what_others_have_shown() -> None:
    others = AcceptanceRate()
    fed(AcceptanceRate(others), 3, False, 200)
    begun = AcceptanceRate(others)
    assert begun.probability(3) < 0.05
    assert fed(begun, 3, True, 10).probability(3) > 0.5


def timed(
    costs: StepCosts, num_drafted: int, *seconds: float, num_sequences: int = 1, keys: int = 900
) -> None:
    for each in seconds:
        costs.observe(num_sequences, keys, num_drafted, each)


def test_nothing_is_known_before_a_kind_was_measured_a_few_times() -> None:
    costs = StepCosts()
    timed(costs, 0, *[1.0] * LEAST)
    timed(costs, 4, *[1.5] * (LEAST - 1))
    assert costs.plain_s(1, 900) == 1.0
    assert costs.relative(1, 900, 4) is None
    timed(costs, 4, 1.5)
    assert costs.relative(1, 900, 4) == 1.5


def test_drafts_of_about_one_length_are_one_kind() -> None:
    costs = StepCosts()
    timed(costs, 0, *[1.0] * LEAST)
    timed(costs, 5, *[2.0] * LEAST)
    assert [costs.relative(1, 900, length) for length in (4, 5, 8, 9)] == [None, 2.0, 2.0, None]


def test_one_slow_step_changes_nothing_and_many_do() -> None:
    costs = StepCosts()
    timed(costs, 0, 1.0, 1.0, 50.0, 1.0)
    assert costs.plain_s(1, 900) == 1.0
    timed(costs, 0, *[3.0] * WINDOW)
    assert costs.plain_s(1, 900) == 3.0


def test_the_nearest_length_counts_and_both_sides_come_from_one() -> None:
    costs = StepCosts()
    timed(costs, 0, *[1.0] * LEAST, keys=100)
    timed(costs, 2, *[2.0] * LEAST, keys=100)
    timed(costs, 0, *[10.0] * LEAST, keys=100_000)
    timed(costs, 2, *[11.0] * LEAST, keys=100_000)
    assert costs.relative(1, 200, 2) == 2.0
    assert costs.relative(1, 50_000, 2) == 1.1
    timed(costs, 0, *[7.0] * LEAST, keys=200)
    assert costs.relative(1, 200, 2) == 2.0
