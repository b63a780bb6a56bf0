"""Asks one model the same questions on several caches: each context is computed in every format.

The formats take turns on each item, so that an exam that is broken off has asked all of them the same. Items
may be divided among several copies of a model; no answer depends on which of them gives it.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from threading import Event, Lock

import torch
from torch import Tensor

from kvchat.engine.api.cache_format import EXACT
from kvchat.engine.api.recall import FormatMarks, Item, Question
from kvchat.engine.quality.gauge import Gauge, Text, TokenLosses, joined, predict, token_losses
from kvchat.engine.quality.replay import Replay
from kvchat.errors import ContextOverflow


@dataclass(frozen=True, slots=True)
class _Answered:
    """What one format has answered of one item."""

    right: tuple[bool, ...]
    answers: tuple[TokenLosses, ...]
    text: TokenLosses
    token_bytes: float


def examine(
    gauge: Gauge,
    items: Sequence[Item],
    formats: Sequence[str],
    report: Callable[[int], None] = lambda _: None,
    *,
    beside: Sequence[Gauge] = (),
) -> tuple[FormatMarks, ...]:
    """Return how each format answers, the exact one first.

    Args:
        items: contexts with something to predict, and with questions.
        report: is told how many items are done, by any thread.
        beside: the same model again; each takes items too, on a thread of its own.

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
    behind, names = max(map(_most_behind, items)), (EXACT, *formats)
    answered: dict[int, list[_Answered]] = {}
    left, lock, ended = iter(enumerate(items)), Lock(), Event()

    @torch.inference_mode()
    def take_items(own: Gauge) -> None:
        try:
            replays = [own.replay(name, longest, behind) for name in names]
            while not ended.is_set():
                with lock:
                    number, item = next(left, (-1, None))
                if item is None:
                    return
                found = _examine_item(replays, item)
                with lock:
                    answered[number] = found
                    report(len(answered))
        except BaseException:
            ended.set()  # whoever asks learns of it when all have stopped
            raise

    with ThreadPoolExecutor(max(1, len(beside))) as threads:
        futures = [threads.submit(take_items, other) for other in beside]
        take_items(gauge)
        for future in futures:
            future.result()
    return tuple(
        _marks(name, [answered[number][index] for number in range(len(items))])
        for index, name in enumerate(names)
    )


def _examine_item(replays: Sequence[Replay], item: Item) -> list[_Answered]:
    """Return what each format answers; the first one is the exact one."""
    truth: list[Tensor] | None = None
    answered = []
    for replay in replays:
        found = _ask(replay, item)
        truth = truth or found
        # Behind its last question a context has been pruned.
        asked_len = len(item.token_ids) + len(item.questions[-1].token_ids)
        answered.append(_answered(item, truth, found, replay.token_bytes(asked_len)))
    return answered


def _marks(cache_format: str, answered: Sequence[_Answered]) -> FormatMarks:
    return FormatMarks(
        cache_format=cache_format,
        right=tuple(one.right for one in answered),
        answers=joined([losses for one in answered for losses in one.answers]).loss(),
        texts=joined([one.text for one in answered]).loss(),
        token_bytes=sum(one.token_bytes for one in answered) / len(answered),
    )


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


def _answered(item: Item, truth: Sequence[Tensor], found: Sequence[Tensor], token_bytes: float) -> _Answered:
    predicted = torch.tensor([item.token_ids[position] for position in item.predicted])
    right, answers = [], []
    for question, exact, given in zip(item.questions, truth[1:], found[1:], strict=True):
        losses = token_losses(exact.cpu(), given.cpu(), torch.tensor(question.answer_ids))
        answers.append(losses)
        right.append(bool(losses.approximate_hits.all()))
    text = token_losses(truth[0].cpu(), found[0].cpu(), predicted)
    return _Answered(tuple(right), tuple(answers), text, token_bytes)
