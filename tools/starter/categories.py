"""The rows of the evaluation: what is probed, how often, and on which side of the separation."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from tools.starter import faq, outside, phrasing, skills, smalltalk
from tools.starter.probes import Probe, Prober
from tools.starter.skills import Exercise
from tools.starter.split import Split

TRAIN, HELD_OUT = Split.TRAIN, Split.HELD_OUT
LABELS = {TRAIN: "trained", HELD_OUT: "held-out"}
Maker = Callable[[random.Random], Iterator[Probe]]


@dataclass(frozen=True, slots=True)
class Category:
    """A row of the evaluation; `probes` makes its probes from a generator of random numbers."""

    name: str
    probes: Maker


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """How many probes a category gets, and at which lengths in tokens."""

    recall: int
    passkey: int
    other: int
    recall_lengths: tuple[int, ...]
    passkey_lengths: tuple[int, ...]


FULL = Sizes(
    recall=48,
    passkey=12,
    other=80,
    recall_lengths=(256, 512, 1024, 2048, 4096),
    passkey_lengths=(1024, 2048, 4096),
)
QUICK = Sizes(recall=16, passkey=4, other=24, recall_lengths=(256, 512, 1024), passkey_lengths=(1024,))


def _many(number: int, make: Callable[[random.Random], Probe]) -> Maker:
    return lambda rng: (make(rng) for _ in range(number))


def _exercises(prober: Prober, number: int, make: Callable[[random.Random], Exercise]) -> Maker:
    return lambda rng: (prober.exercise(make(rng)) for _ in range(number))


def _courtesies(prober: Prober, split: Split, rng: random.Random) -> Iterator[Probe]:
    for intent in smalltalk.INTENTS:
        for form in smalltalk.intent_forms(intent, split):
            yield prober.in_passing(rng, form.replace("{x}", ""), intent.reply)


def _topics(prober: Prober, split: Split, rng: random.Random) -> Iterator[Probe]:
    for topic in faq.TOPICS:
        for form in phrasing.topic_forms(topic, split):
            yield prober.in_passing(rng, form, topic.answer)


def _wrapped_topic(prober: Prober, rng: random.Random) -> Probe:
    topic = rng.choice(faq.TOPICS)
    question = phrasing.wrap(rng, rng.choice(phrasing.topic_forms(topic, TRAIN)), HELD_OUT)
    return prober.in_passing(rng, question, topic.answer)


def _templated_topic(prober: Prober, rng: random.Random) -> Probe:
    topic = rng.choice([topic for topic in faq.TOPICS if topic.nouns])
    question = phrasing.fill(rng.choice(phrasing.noun_templates(HELD_OUT)), rng.choice(topic.nouns))
    return prober.in_passing(rng, question, topic.answer)


def _outside(prober: Prober, split: Split, rng: random.Random) -> Probe:
    return prober.in_passing(rng, outside.ask_outside(rng, prober.lexicon, split), outside.FALLBACK)


def _recall_categories(prober: Prober, sizes: Sizes) -> Iterator[Category]:
    columns = (
        ("trained phrasings, fresh values", TRAIN, TRAIN, True),
        ("trained phrasings, echoed", TRAIN, HELD_OUT, True),
        ("held-out phrasings, echoed", HELD_OUT, HELD_OUT, True),
        ("held-out phrasings, said once", HELD_OUT, HELD_OUT, False),
    )
    for label, forms, values, echo in columns:
        for length in sizes.recall_lengths:
            make = partial(prober.recall, forms=forms, length=length, echo=echo, values=values)
            yield Category(f"recall {length}, {label}", _many(sizes.recall, make))


def _passkey_categories(prober: Prober, sizes: Sizes) -> Iterator[Category]:
    for length in sizes.passkey_lengths:
        for depth in (0.1, 0.5, 0.9):
            make = partial(prober.passkey, length=length, depth=depth)
            yield Category(f"passkey {length}, depth {depth}", _many(sizes.passkey, make))


def _chat_categories(prober: Prober, sizes: Sizes) -> Iterator[Category]:
    for split, label in LABELS.items():
        yield Category(f"FAQ, {label} forms", partial(_topics, prober, split))
    yield Category("FAQ, held-out wrappers", _many(sizes.other, partial(_wrapped_topic, prober)))
    yield Category("FAQ, held-out templates", _many(sizes.other, partial(_templated_topic, prober)))
    for split, label in LABELS.items():
        yield Category(f"small talk, {label} forms", partial(_courtesies, prober, split))
    for split, label in LABELS.items():
        yield Category(
            f"outside the domain, {label} templates", _many(sizes.other, partial(_outside, prober, split))
        )
    yield Category("unknown fact, held-out questions", _many(sizes.other, prober.unknown))
    yield Category("updated fact, held-out phrasings", _many(sizes.other, prober.update))


def _skill_categories(prober: Prober, sizes: Sizes) -> Iterator[Category]:
    lexicon, number = prober.lexicon, sizes.other // 2
    for forms, label in LABELS.items():
        makers: dict[str, Callable[[random.Random], Exercise]] = {
            "repeat 1-8 words": partial(skills.repeat, forms=forms, values=HELD_OUT, lexicon=lexicon),
            "first item": partial(
                skills.pick_item, forms=forms, last=False, values=HELD_OUT, lexicon=lexicon
            ),
            "last item": partial(skills.pick_item, forms=forms, last=True, values=HELD_OUT, lexicon=lexicon),
            "count up to 60": partial(skills.count_up, forms=forms),
            "count down": partial(skills.count_down, forms=forms),
            "say a word several times": partial(skills.times, forms=forms, values=HELD_OUT, lexicon=lexicon),
        }
        for name, make in makers.items():
            yield Category(f"{name}, {label} form", _exercises(prober, number, make))
    opening = partial(
        skills.pick_item, forms=TRAIN, last=False, values=HELD_OUT, lexicon=lexicon, list_opens=True
    )
    yield Category("first item of a list that opens the message", _exercises(prober, number, opening))
    for highest in (9, 20, 99):
        add = partial(skills.add, forms=TRAIN, values=HELD_OUT, highest=highest)
        yield Category(f"add 0-{highest}, trained form", _exercises(prober, number, add))


def categories(prober: Prober, sizes: Sizes) -> Iterator[Category]:
    """Yield all rows of the evaluation."""
    yield from _recall_categories(prober, sizes)
    yield from _passkey_categories(prober, sizes)
    yield from _chat_categories(prober, sizes)
    yield from _skill_categories(prober, sizes)
