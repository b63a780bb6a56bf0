"""What a kind of fact consists of, and how its values and questions are made."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from tools.starter import words
from tools.starter.phrases import phrases
from tools.starter.split import Split
from tools.starter.words import Lexicon

TRAINED_POOL_SHARE = 0.2
ValueMaker = Callable[[random.Random, Split, Lexicon], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class FactKind:
    """One kind of fact; `{k}` is its key (what it is about) and `{v}` its value.

    Args:
        keys: Pool of keys; empty if a person has only one such fact.
        made_up_keys: Share of keys that are made-up words instead.
        clauses: Ways to state it, without a capital letter and without the full stop.
        questions: Whole questions for it.
        asked: Embedded questions ("what my name is") for the shared question frames.
        canonical: The answer.
        unknown: What was not told, for "You have not told me ... yet."
        greeting: A special acknowledgement, empty if there is none.
    """

    name: str
    value: ValueMaker
    clauses: tuple[str, ...]
    questions: tuple[str, ...]
    asked: tuple[str, ...]
    canonical: str
    unknown: str
    keys: tuple[str, ...] = ()
    made_up_keys: float = 0.0
    greeting: str = ""
    weight: float = 1.0


def pooled(pool: tuple[str, ...], pool_share: float = 0.5) -> ValueMaker:
    """Values from `pool`, and made-up words: more of these in training, so that values are not guessed."""

    def value(rng: random.Random, split: Split, lexicon: Lexicon) -> str:
        share = min(pool_share, TRAINED_POOL_SHARE) if split is Split.TRAIN else pool_share
        return lexicon.pooled(rng, split, pool, share)

    return value


def number(low: int, high: int) -> ValueMaker:
    """Numbers in [low, high]."""
    return lambda rng, split, lexicon: words.number(rng, split, low, high)


def job(rng: random.Random, split: Split, lexicon: Lexicon) -> str:
    """A job with its article."""
    name = pooled(words.JOBS, 0.7)(rng, split, lexicon)
    return ("an " if name[0] in "aeiou" else "a ") + name


def day(rng: random.Random, split: Split, lexicon: Lexicon) -> str:
    """A day of the week or a date; in training also a made-up day."""
    if rng.random() < 0.5:
        return words.date(rng, split)
    share = 0.5 if split is Split.TRAIN else 1.0
    return lexicon.pooled(rng, split, words.DAYS, share)


def items(rng: random.Random, split: Split, lexicon: Lexicon) -> str:
    """Two to four things in a row."""
    things = words.word_list(rng, split, lexicon, rng.randint(2, 4))
    return ", ".join(things[:-1]) + " and " + things[-1]


# Questions for anything that has a noun phrase; the kinds below list them with their own noun.
_ASK_NOUN = phrases(
    "What is {n}? | Tell me {n}. | What was {n} again? | I forgot {n}. What is it? | Remind me of {n}. | Do "
    "you remember {n}? | {n}? | Give me {n}. | What did I say about {n}? | I need {n}. | What do you know "
    "about {n}? | Can you tell me {n}? | Do you know {n}?"
)


def ask(noun: str, own: str) -> tuple[str, ...]:
    """Return whole questions: the kind's own, and the shared ones about `noun`."""
    asked = tuple(frame.replace("{n}", noun) for frame in _ASK_NOUN)
    return tuple(dict.fromkeys(form[0].upper() + form[1:] for form in (*phrases(own), *asked)))
