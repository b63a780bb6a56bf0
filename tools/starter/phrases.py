"""How phrasings are written down in the modules that list them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

FURTHER_FORMS = Path(__file__).parent / "further_forms.txt"


def phrases(text: str) -> tuple[str, ...]:
    """Return the phrasings in `text`, which " | " separates."""
    return tuple(phrase.strip() for phrase in text.split("|"))


@cache
def further_forms() -> dict[str, tuple[str, ...]]:
    """Return what `further_forms.txt` lists, by the names of its sections: a form on each line."""
    sections: dict[str, list[str]] = {}
    for line in FURTHER_FORMS.read_text(encoding="utf-8").splitlines():
        if line.startswith("["):
            forms = sections.setdefault(line.strip("[]"), [])
        elif line and not line.startswith("#"):
            forms.append(line)
    return {name: tuple(forms) for name, forms in sections.items()}


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
