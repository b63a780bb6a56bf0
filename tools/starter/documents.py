"""Synthetic documents: plain sentences that mean little, with facts hidden among them."""

from __future__ import annotations

import random

from tools.starter import words
from tools.starter.split import Split, values_of

SUBJECTS = (
    "The old man",
    "A young woman",
    "The gardener",
    "The teacher",
    "A small boy",
    "The captain",
    "The neighbour",
    "A tall girl",
    "The farmer",
    "The postman",
    "A quiet child",
    "The baker",
    "The doctor",
    "A stranger",
    "The painter",
    "The nurse",
    "My grandmother",
    "The shopkeeper",
    "A tired driver",
    "The fisherman",
)
ACTIONS = (
    "walked slowly to the {p}",
    "looked for a {t}",
    "carried a {t} to the {p}",
    "sat down near the {p}",
    "talked about the {t}",
    "cleaned the {p}",
    "opened the {p}",
    "repaired a {t}",
    "waited in front of the {p}",
    "painted the {p}",
    "lost a {t} on the way",
    "sold a {t} at the market",
    "dreamed of a {t}",
    "drew a map of the {p}",
    "slept in the {p}",
    "read a letter in the {p}",
    "brought some {i}",
    "ate {i} with {i}",
    "bought {i} in the morning",
    "cooked {i} for everyone",
    "put {i} on the table",
    "shared the {i} with a friend",
    "planted {i} behind the {p}",
)
ENDINGS = (
    "",
    "",
    "",
    " in the morning",
    " before noon",
    " in the evening",
    " on a rainy day",
    " after the rain",
    " last winter",
    " without a word",
    " with great care",
    " once again",
    " for the first time",
    " as usual",
)
WHOLE = (
    "It was a long and quiet day.",
    "Nobody noticed anything strange.",
    "The wind was strong that week.",
    "Then the rain began to fall.",
    "The lights went out one after another.",
    "There was a smell of fresh bread.",
    "Everything was as it had always been.",
    "The days became shorter.",
    "The river was high this spring.",
    "Some people laughed, others were silent.",
    "A bell rang twice.",
    "The road was empty.",
)
OPENINGS = (
    "Read this text: ",
    "Here is a document: ",
    "Please read this: ",
    "Text: ",
    "This is my text: ",
    "Read the following: ",
    "I have a text for you: ",
    "Please read the following text: ",
)
READ = "I have read it."


def sentence(rng: random.Random) -> str:
    """Return one filler sentence."""
    if rng.random() < 0.12:
        return rng.choice(WHOLE)
    text = f"{rng.choice(SUBJECTS)} {rng.choice(ACTIONS)}{rng.choice(ENDINGS)}."
    while "{" in text:
        text = text.replace("{p}", rng.choice(values_of(words.PLACES, Split.TRAIN)), 1)
        text = text.replace("{t}", rng.choice(values_of(words.THINGS, Split.TRAIN)), 1)
        text = text.replace("{i}", rng.choice(values_of(words.ITEMS, Split.TRAIN)), 1)
    return text


def _sentences(rng: random.Random, num_sentences: int, hidden: list[tuple[float, str]]) -> list[str]:
    sentences = [sentence(rng) for _ in range(num_sentences)]
    for depth, text in sorted(hidden, reverse=True):
        sentences.insert(round(depth * len(sentences)), text)
    return sentences


def document(rng: random.Random, num_sentences: int, hidden: list[tuple[float, str]]) -> str:
    """Return a document.

    Args:
        num_sentences: Number of filler sentences.
        hidden: Sentences to hide with the depth of each, 0 (start) to 1 (end).
    """
    return rng.choice(OPENINGS) + " ".join(_sentences(rng, num_sentences, hidden))


def notes(rng: random.Random, num_sentences: int, hidden: list[tuple[float, str]], question: str) -> str:
    """Return a text in lines, as files have them, with a question below."""
    parts = _sentences(rng, num_sentences, hidden)
    text = parts[0] + "".join(rng.choice((" ", " ", "\n")) + part for part in parts[1:])
    return f"{text}\n\n{question}"
