"""The corpus: endless conversations, determined by a seed, in plain text."""

from __future__ import annotations

import random
from collections.abc import Iterator

from tools.starter import faq, outside, phrasing, smalltalk, words
from tools.starter.conversation import Conversation, Message, Mix
from tools.starter.words import Lexicon

# What the tokenizer is trained on, and what the tests look at: every kind of turn.
GENERAL_MIX = Mix(fact=20, query=34, faq=15, small=8, outside=8, skill=13, document=2)


def conversation(seed: int, mix: Mix = GENERAL_MIX, lexicon: Lexicon | None = None) -> Iterator[Message]:
    """Yield the messages of the conversation number `seed`, without end.

    Args:
        seed: Determines the conversation, together with `mix` and `lexicon`.
        mix: Frequencies of the kinds of turns.
        lexicon: Where random words come from; syllables only if None.
    """
    rng = random.Random(seed)
    return Conversation(rng, lexicon or Lexicon(), mix).messages()


def texts(num_turns: int, seed: int = 0) -> Iterator[str]:
    """Yield the texts of `num_turns` messages from conversations of about fifty messages each."""
    num_left = num_turns
    while num_left > 0:
        for _, message in zip(range(min(50, num_left)), conversation(seed), strict=False):
            yield message.text
            num_left -= 1
        seed += 1


def vocabulary() -> Iterator[str]:
    """Yield every fixed sentence and every word of the pools, as they stand inside a sentence."""
    pools = (
        words.NAMES,
        words.COLOURS,
        words.PLACES,
        words.CITIES,
        words.ADJECTIVES,
        words.DAYS,
        words.MONTHS,
        words.ITEMS,
        words.JOBS,
        words.INSTRUMENTS,
        words.LANGUAGES,
        words.THINGS,
        words.STATEFUL,
        words.CATEGORIES,
        words.COMPANIONS,
        words.CALLABLES,
        words.SECRETS,
        words.LOCKS,
        words.EVENTS,
        words.COUNTABLES,
        words.OWNED,
        words.LISTS,
    )
    for pool in pools:
        for word in pool:
            yield f"is {word}"
            yield f"the {word}"
    for topic in faq.TOPICS:
        yield topic.answer
        yield from topic.forms
    for intent in smalltalk.INTENTS:
        yield intent.reply
        yield from (form.replace("{x}", "") for form in intent.forms)
    yield from (phrasing.fill(template, "it") for template in phrasing.NOUN_TEMPLATES)
    yield from outside.TEMPLATES
