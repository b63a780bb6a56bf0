"""Which phrasings and values are kept out of training: a rule on their hash, so that no list can drift."""

from __future__ import annotations

import enum
import functools
import hashlib

HELD_OUT_VALUE_PERCENT = 15


class Split(enum.Enum):
    """The side of the train / held-out separation a text is drawn from."""

    TRAIN = "train"
    HELD_OUT = "held-out"


def stable_hash(text: str) -> int:
    """Return 64 bits of a digest of `text` that is the same in every process and on every machine."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


def is_held_out_value(value: str) -> bool:
    """Say whether training must never use `value` (any word, name, number or code a fact can hold)."""
    return stable_hash("value:" + value.lower()) % 100 < HELD_OUT_VALUE_PERCENT


@functools.cache
def values_of(values: tuple[str, ...], split: Split) -> tuple[str, ...]:
    """Return the values that belong to `split`, in their given order."""
    wanted = split is Split.HELD_OUT
    return tuple(value for value in values if is_held_out_value(value) == wanted)


@functools.cache
def forms_of(forms: tuple[str, ...], split: Split, num_held_out: int) -> tuple[str, ...]:
    """Return the phrasings that belong to `split`.

    Args:
        forms: Phrasings of one intent. The first is the plainest one and always belongs to training.
        split: The side wanted.
        num_held_out: How many of the others are held out: those with the smallest hashes.
    """
    ranked = sorted(forms[1:], key=lambda form: stable_hash("form:" + form))
    held_out = frozenset(ranked[:num_held_out])
    wanted = split is Split.HELD_OUT
    return tuple(form for form in forms if (form in held_out) == wanted)
