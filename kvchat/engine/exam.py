"""Asks one model the same questions on several caches: each context is computed in every format.

The formats take turns on each item, so that an exam that is broken off has asked all of them the same.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from kvchat.engine.api.cache_format import EXACT
from kvchat.engine.api.exams import FormatMarks, Item, Question
from kvchat.engine.gauge import Gauge, Text, predict
from kvchat.engine.loss import TokenLosses, joined, token_losses
from kvchat.engine.replay import Replay
from kvchat.errors import ContextOverflow


class _Format:
    """What one format has answered so far."""

    def __init__(self, cache_format: str, replay: Replay) -> None:
        self.cache_format = cache_format
        self.replay = replay
        self.right: list[tuple[bool, ...]] = []
        self.answers: list[TokenLosses] = []
        self.texts: list[TokenLosses] = []
        self.token_bytes: list[float] = []

    def marks(self) -> FormatMarks:
        return FormatMarks(
            cache_format=self.cache_format,
            right=tuple(self.right),
            answers=joined(self.answers).loss(),
            texts=joined(self.texts).loss(),
            token_bytes=sum(self.token_bytes) / len(self.token_bytes),
        )


@torch.inference_mode()
def examine(
    gauge: Gauge,
    items: Sequence[Item],
    formats: Sequence[str],
    report: Callable[[int], None] = lambda _: None,
) -> tuple[FormatMarks, ...]:
    """Return how each format answers, the exact one first.

    Args:
        items: contexts with something to predict, and with questions.
        report: is told how many items are done.

    Raises:
        ConfigError: the model cannot be stored in one of the formats.
        ContextOverflow: a context with its questions is longer than the model's own.
    """
    longest = max(len(item.token_ids) + _most_behind(item) for item in items)
    if longest > gauge.max_context:
        raise ContextOverflow(
            f"the questions are asked behind up to {longest} tokens, and this model's context has "
            f"{gauge.max_context}; ask another model with -m, or measure on a conversation"
        )
    behind = max(map(_most_behind, items))
    taken = [_Format(name, gauge.replay(name, longest, behind)) for name in (EXACT, *formats)]
    for number, item in enumerate(items):
        truth: list[Tensor] | None = None
        for one in taken:
            found = _ask(one.replay, item)
            truth = truth or found
            _mark(one, item, truth, found)
            one.token_bytes.append(one.replay.token_bytes(_asked_len(item)))
        report(number + 1)
    return tuple(one.marks() for one in taken)


def _ask(replay: Replay, item: Item) -> list[Tensor]:
    """Return the logits before the predicted tokens of the context, and before those of each answer."""
    replay.begin()
    text = Text(item.token_ids, item.predicted, item.prompt_ends)
    found = [predict(replay, text, 0)]
    if replay.is_pruned:
        return found + [_answer_pruned(replay, item, question) for question in item.questions]
    end = text.wanted[-1]
    start = len(item.token_ids)
    if replay.is_shadowed:  # the context is read exactly, and its questions are asked through its shadow
        replay.plan((start,))
        end = 0
    replay.compute(item.token_ids[end:], end)
    return found + [
        replay.compute(_fed(question), start, len(question.answer_ids)) for question in item.questions
    ]


def _answer_pruned(replay: Replay, item: Item, question: Question) -> Tensor:
    """Return the logits before an answer where the context is pruned once its question is known."""
    prompt = item.token_ids + question.token_ids
    replay.plan((len(prompt),))
    found = [replay.compute(prompt, 0, 1)]
    if rest := question.answer_ids[:-1]:
        found.append(replay.compute(rest, len(prompt), len(rest)))
    return torch.cat(found)


def _fed(question: Question) -> tuple[int, ...]:
    return question.token_ids + question.answer_ids[:-1]


def _most_behind(item: Item) -> int:
    return max(len(_fed(question)) for question in item.questions)


def _asked_len(item: Item) -> int:
    """Return the tokens of a context with its last question, behind which it has been pruned."""
    return len(item.token_ids) + len(item.questions[-1].token_ids)


def _mark(one: _Format, item: Item, truth: Sequence[Tensor], found: Sequence[Tensor]) -> None:
    predicted = torch.tensor([item.token_ids[position] for position in item.predicted])
    one.texts.append(token_losses(truth[0].cpu(), found[0].cpu(), predicted))
    right = []
    for question, exact, given in zip(item.questions, truth[1:], found[1:], strict=True):
        answer = torch.tensor(question.answer_ids)
        losses = token_losses(exact.cpu(), given.cpu(), answer)
        one.answers.append(losses)
        right.append(bool(losses.approximate_hits.all()))
    one.right.append(tuple(right))
