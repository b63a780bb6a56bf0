"""The stages of training: how long, on which sequences, at which learning rate."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import accumulate

from tools.starter.conversation import Mix
from tools.starter.skills import Exercises

BATCH_TOKENS = 4096
WARMUP_STEPS = 100

# Only the endings write a space before a person's words, as the chat template does: there a word has the same
# tokens as anywhere else, so that a list may open a message.
SHORT_MIX = Mix(
    fact=21, query=37, faq=14, small=7, outside=7, skill=13, document=1, longest_document=8, is_spaced=False
)
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
    is_spaced=False,
)
# Facts that were said once and never repeated are found last; half of the questions ask for them now.
HARD_MIX = replace(LONG_MIX, said_once_share=0.5)
# More facts for each question keep such facts waiting longer.
SPARSE_MIX = Mix(
    fact=26,
    query=35,
    faq=12,
    small=5,
    outside=10,
    skill=14,
    document=4,
    said_once_share=0.45,
    longest_document=24,
    exercises=Exercises(repeat=38, count_up=13, add=36, times=12),
    is_spaced=False,
)
DENSE_MIX = Mix(
    fact=25,
    query=40,
    faq=11,
    small=6,
    outside=8,
    skill=15,
    document=3,
    said_once_share=0.5,
    longest_document=24,
    exercises=Exercises(repeat=38, count_up=13, count_down=7, add=44, times=14, first=10, last=10),
    is_spaced=False,
)
SKILL_MIX = replace(
    DENSE_MIX,
    faq=9,
    small=5,
    skill=18,
    exercises=Exercises(repeat=38, count_up=12, count_down=7, add=40, times=20, first=12, last=12),
)
COPY_MIX = Mix(
    fact=27,
    query=42,
    faq=7,
    small=4,
    outside=10,
    skill=18,
    document=2,
    said_once_share=0.6,
    longest_document=24,
    exercises=Exercises(repeat=48, count_up=12, count_down=7, add=24, times=22, first=16, last=12),
    is_spaced=False,
)
# Long stretches of telling, then questions for all of it; longer lists; fewer questions for the unknown.
ROUND_MIX = replace(
    COPY_MIX,
    fact=32,
    faq=6,
    outside=12,
    skill=22,
    update_share=0.15,
    unknown_share=0.08,
    said_once_share=0.5,
    round_share=0.6,
    exercises=Exercises(
        repeat=50,
        count_up=8,
        count_down=5,
        add=26,
        times=20,
        first=16,
        last=12,
        repeated=(1, 2, 3, 4, 5, 6, 7, 8, 8, 10),
    ),
)
LIST_MIX = replace(
    ROUND_MIX,
    fact=34,
    faq=7,
    small=5,
    outside=9,
    skill=20,
    exercises=replace(ROUND_MIX.exercises, repeat=46, add=28, first=22),
)
FINE_MIX = replace(
    LIST_MIX,
    faq=9,
    outside=8,
    exercises=replace(
        LIST_MIX.exercises, repeat=40, count_up=9, count_down=7, add=30, times=22, first=32, last=16
    ),
)
OPENING_MIX = replace(FINE_MIX, faq=11, exercises=replace(FINE_MIX.exercises, first=40))
ENDING_MIX = replace(
    FINE_MIX,
    faq=22,
    small=10,
    skill=22,
    is_spaced=True,
    exercises=replace(FINE_MIX.exercises, add=36, first=50, list_opens_share=0.6),
)
CLOSING_MIX = replace(
    ENDING_MIX, faq=18, small=7, skill=28, exercises=replace(ENDING_MIX.exercises, first=90)
)
LAST_MIX = replace(ENDING_MIX, faq=24, small=11, skill=24, exercises=replace(ENDING_MIX.exercises, first=70))
# Many more ways to ask and to chat; fewer of the questions fill a noun into a shared template.
FORMS_MIX = replace(LAST_MIX, faq=48, small=26, outside=16, skill=18, noun_share=0.3)
SHORTER, LONGER = (1024, 2048, 1024, 2048, 4096), (2048, 4096, 1024, 4096, 2048, 4096)
SHORT_SPREAD = (512, 1024, 512, 2048, 512, 4096)
MIXED, SPREAD = (2048, 1024, 4096, 512, 2048, 4096), (2048, 1024, 4096, 1024, 512, 2048, 4096)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """A part of the training.

    Args:
        num_tokens: How many tokens it reads.
        lengths: Tokens of each sequence; the steps take turns. A batch holds as many sequences as make
            `BATCH_TOKENS`.
        mix: What the conversations consist of.
        start_rate, end_rate: The learning rate, which moves from one to the other along a line.
        muon: Whether Muon moves the matrices; AdamW moves the rest, and all if not.
        kept_share: How much the weights at its end count in what is shipped, beside what was kept before;
            0: they are not kept. Each of two endings is better at what its own mix practised, and a mean of
            them at both.
        starts_from_kept: Whether it starts from what has been kept before, with new moments of the optimiser,
            instead of going on from the stage before.
    """

    num_tokens: int
    lengths: tuple[int, ...]
    mix: Mix
    start_rate: float
    end_rate: float
    muon: bool = False
    kept_share: float = 0.0
    starts_from_kept: bool = False

    @property
    def is_kept(self) -> bool:
        return self.kept_share > 0

    def length_at(self, step: int) -> int:
        """Return the length of the sequences of a step."""
        return self.lengths[step % len(self.lengths)]


def _adamw(num_tokens: int, lengths: tuple[int, ...], mix: Mix, rates: tuple[float, float]) -> Stage:
    """Return a stage whose weights AdamW moves, from one rate to the other."""
    return Stage(num_tokens=num_tokens, lengths=lengths, mix=mix, start_rate=rates[0], end_rate=rates[1])


def _muon(
    num_tokens: int, lengths: tuple[int, ...], mix: Mix, rates: tuple[float, float], kept_share: float = 0.0
) -> Stage:
    """Return a stage whose matrices Muon moves."""
    return replace(_adamw(num_tokens, lengths, mix, rates), muon=True, kept_share=kept_share)


STAGES = (
    _adamw(1_000_000, (256,), SHORT_MIX, (2e-3, 2e-3)),
    _adamw(4_000_000, (512,), SHORT_MIX, (2e-3, 2e-3)),
    _adamw(4_800_000, (1024,), LONG_MIX, (2e-3, 1.6e-3)),
    _adamw(150_000, (1024,), HARD_MIX, (1.6e-3, 1.6e-3)),
    _adamw(1_700_000, (2048,), HARD_MIX, (1.6e-3, 1.1e-3)),
    _adamw(1_870_000, (1024,), SPARSE_MIX, (1.6e-3, 1.6e-3)),
    _adamw(1_460_000, (2048,), SPARSE_MIX, (1.6e-3, 1.6e-3)),
    _muon(6_930_000, SHORTER, DENSE_MIX, (4e-3, 4e-3)),
    _muon(1_430_000, LONGER, DENSE_MIX, (4e-3, 3.4e-3)),
    _muon(3_600_000, LONGER, SKILL_MIX, (3.4e-3, 2.5e-3)),
    _muon(1_880_000, LONGER, SKILL_MIX, (2.5e-3, 2e-3)),
    _muon(2_340_000, MIXED, COPY_MIX, (4e-3, 4e-3)),
    _muon(8_330_000, MIXED, ROUND_MIX, (4e-3, 4e-3)),
    _muon(2_810_000, MIXED, LIST_MIX, (4e-3, 4e-3)),
    _muon(3_150_000, MIXED, FINE_MIX, (4e-3, 4e-3)),
    _muon(1_520_000, MIXED, FINE_MIX, (4e-3, 3.4e-3)),
    _muon(4_240_000, MIXED, OPENING_MIX, (3.4e-3, 1.8e-3)),
    _muon(8_610_000, SPREAD, ENDING_MIX, (4e-3, 4e-3)),
    _muon(4_890_000, SPREAD, ENDING_MIX, (4e-3, 1.5e-3)),
    _muon(3_340_000, SPREAD, ENDING_MIX, (1.5e-3, 2e-5), kept_share=1.0),
    _muon(3_470_000, SPREAD, CLOSING_MIX, (2.5e-3, 2.5e-3)),
    _muon(7_600_000, SPREAD, CLOSING_MIX, (2.5e-3, 2e-5)),
    _muon(850_000, SPREAD, LAST_MIX, (2e-3, 2e-3)),
    _muon(3_060_000, SPREAD, LAST_MIX, (2e-3, 2e-5), kept_share=0.4),
    replace(_muon(1_350_000, SHORT_SPREAD, FORMS_MIX, (2e-3, 6.5e-4), kept_share=0.5), starts_from_kept=True),
)
TOTAL_TOKENS = sum(stage.num_tokens for stage in STAGES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What one step uses."""

    stage: Stage
    rate: float


def num_kept_at(position: float) -> int:
    """Return how many stages that keep their weights end at `position` or before; pure."""
    ends = accumulate(stage.num_tokens for stage in STAGES)
    return sum(stage.is_kept for stage, end in zip(STAGES, ends, strict=True) if end <= position)


def num_restarts_at(position: float) -> int:
    """Return how many stages that start from what was kept begin at `position` or before; pure."""
    starts = accumulate((stage.num_tokens for stage in STAGES[:-1]), initial=0)
    return sum(
        stage.starts_from_kept for stage, start in zip(STAGES, starts, strict=True) if start <= position
    )


def kept_share(num_kept: int) -> float:
    """Return how much the last of so many kept endings counts in what is shipped; pure."""
    return [stage.kept_share for stage in STAGES if stage.is_kept][num_kept - 1]


def setting_at(position: float) -> Setting:
    """Return the stage and learning rate at `position` tokens into the table; pure."""
    start = fresh = 0
    for stage in STAGES:
        if stage.starts_from_kept:
            fresh = start
        if position < start + stage.num_tokens:
            break
        start += stage.num_tokens
    else:
        return Setting(stage=STAGES[-1], rate=STAGES[-1].end_rate)
    share = (position - start) / stage.num_tokens
    rate = stage.start_rate + share * (stage.end_rate - stage.start_rate)
    warmup = min(1.0, ((position - fresh) / BATCH_TOKENS + 1) / WARMUP_STEPS)
    return Setting(stage=stage, rate=rate * warmup)
