"""Drafters that know what will be chosen, and are wrong as often as they are told."""

import random
from collections.abc import Callable, Mapping, Sequence

from kvchat.engine.api.ids import RequestId
from kvchat.engine.sequences.batch_plan import Batch
from kvchat.engine.sequences.completion_sequence import Completion

MOST_GUESSES = 7


class Guesses:
    """Guesses that follow from request and text alone: of random lengths, each token right with a chance.

    Args:
        follows: text → the token that is chosen behind it; None: nobody knows.
        rate: how often there is a draft, and how often each of its tokens is right; 0: never.
    """

    def __init__(self, follows: Callable[[Sequence[int]], int | None], rate: float) -> None:
        self._follows = follows
        self._rate = rate
        self.num_steps = 0
        """Timed steps with a draft in them."""

    def draft(self, number: int, text: Sequence[int]) -> tuple[int, ...]:
        chance = random.Random(repr((number, len(text))))
        drafted: list[int] = []
        if chance.random() < self._rate:
            for _ in range(chance.randint(1, MOST_GUESSES)):
                right = self._follows([*text, *drafted])
                if right is None:
                    break
                drafted.append(right if chance.random() < self._rate else abs(right - 1))
        return tuple(drafted)

    def propose(
        self, due: Sequence[Completion], num_beside: int, most: int
    ) -> Mapping[RequestId, tuple[int, ...]]:
        drafts: dict[RequestId, tuple[int, ...]] = {}
        for entry in due:
            guess = self.draft(entry.id, entry.sequence.token_ids)[: min(most, entry.most_drafted)]
            drafts[entry.id] = guess
            most -= len(guess)
        return drafts

    def observe(self, batch: Batch, seconds: float) -> None:
        assert seconds >= 0
        self.num_steps += batch.num_drafted > 0

    def forget(self, request: RequestId) -> None: ...


class Foreseen(Guesses):
    """Guesses at answers that are known.

    Args:
        answer_of: the tokens that a sequence is going to have behind its prompt.
        rate: see `Guesses`.
    """

    def __init__(self, answer_of: Callable[[Completion], Sequence[int]], rate: float) -> None:
        super().__init__(self._next, rate)
        self._answer_of = answer_of
        self._text: list[int] = []

    def propose(
        self, due: Sequence[Completion], num_beside: int, most: int
    ) -> Mapping[RequestId, tuple[int, ...]]:
        drafts: dict[RequestId, tuple[int, ...]] = {}
        for entry in due:
            self._text = [*entry.request.token_ids, *self._answer_of(entry)]
            drafts |= super().propose([entry], num_beside, most)
            most -= len(drafts[entry.id])
        return drafts

    def _next(self, text: Sequence[int]) -> int | None:
        return self._text[len(text)] if len(text) < len(self._text) else None
