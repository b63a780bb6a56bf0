"""How phrasings are written down in the modules that list them."""

from __future__ import annotations

from dataclasses import dataclass


def phrases(text: str) -> tuple[str, ...]:
    """Return the phrasings in `text`, which " | " separates."""
    return tuple(phrase.strip() for phrase in text.split("|"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    """One question of the FAQ.

    Args:
        name: A short id.
        answer: The only answer; one to five sentences.
        nouns: Noun phrases for the shared "What is ...?" templates; empty if only `forms` ask for it.
        forms: Whole questions of its own, the plainest first.
    """

    name: str
    answer: str
    nouns: tuple[str, ...] = ()
    forms: tuple[str, ...]
