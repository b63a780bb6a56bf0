"""The stages of training: how long, on which sequences, at which learning rate."""

from __future__ import annotations

from dataclasses import dataclass, replace

from kvchat.starter.conversation import Mix
from kvchat.starter.skills import Exercises

BATCH_TOKENS = 4096
WARMUP_STEPS = 100

SHORT_MIX = Mix(fact=21, query=37, faq=14, small=7, outside=7, skill=13, document=1, longest_document=8)
LONG_MIX = Mix(
    fact=17,
    query=39,
    faq=12,
    small=6,
    outside=7,
    skill=14,
    document=5,
    longest_document=24,
    exercises=Exercises(add=44),
)
# Facts that were said once and never repeated are found last; half of the questions ask for them now.
HARD_MIX = replace(LONG_MIX, said_once_share=0.5)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """A part of the training.

    Args:
        num_tokens: How many tokens it reads.
        length: Tokens of each sequence; a batch holds as many sequences as make `BATCH_TOKENS`.
        mix: What the conversations consist of.
        start_rate, end_rate: The learning rate, which moves from one to the other along a line.
    """

    num_tokens: int
    length: int
    mix: Mix
    start_rate: float
    end_rate: float

    @property
    def num_sequences(self) -> int:
        """Sequences in a batch."""
        return BATCH_TOKENS // self.length


STAGES = (
    Stage(num_tokens=1_000_000, length=256, mix=SHORT_MIX, start_rate=2e-3, end_rate=2e-3),
    Stage(num_tokens=4_000_000, length=512, mix=SHORT_MIX, start_rate=2e-3, end_rate=2e-3),
    Stage(num_tokens=4_800_000, length=1024, mix=LONG_MIX, start_rate=2e-3, end_rate=1.6e-3),
    Stage(num_tokens=150_000, length=1024, mix=HARD_MIX, start_rate=1.6e-3, end_rate=1.6e-3),
    Stage(num_tokens=2_750_000, length=2048, mix=HARD_MIX, start_rate=1.6e-3, end_rate=8e-4),
    Stage(num_tokens=2_400_000, length=4096, mix=HARD_MIX, start_rate=8e-4, end_rate=2e-5),
)
TOTAL_TOKENS = sum(stage.num_tokens for stage in STAGES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What one step uses."""

    stage: Stage
    rate: float


def setting_at(position: float) -> Setting:
    """Return the stage and learning rate at `position` tokens into the table; pure."""
    start = 0
    for stage in STAGES:
        if position < start + stage.num_tokens:
            break
        start += stage.num_tokens
    else:
        return Setting(stage=STAGES[-1], rate=STAGES[-1].end_rate)
    share = (position - start) / stage.num_tokens
    rate = stage.start_rate + share * (stage.end_rate - stage.start_rate)
    warmup = min(1.0, (position / BATCH_TOKENS + 1) / WARMUP_STEPS)
    return Setting(stage=stage, rate=rate * warmup)
