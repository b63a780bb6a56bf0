"""When and how much is drafted, on steps whose times are made up."""

from collections.abc import Callable, Sequence

import pytest

from kvchat.engine.api.ids import RequestId
from kvchat.engine.sampling.speculative.ngram_proposer import (
    MOST_DRAFTED,
    READ_AT_ONCE,
    NgramProposer,
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
