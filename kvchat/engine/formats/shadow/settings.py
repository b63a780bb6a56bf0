"""Shadow settings: size and cost of a layer's shadow, and from which prompt on one pays."""

from dataclasses import dataclass

from kvchat.engine.api.view import View
from kvchat.engine.formats.spec import ITEM_BYTES, CacheSpec

PIECE_LEN = 4096
"""Tokens of which are copies in float32 at a time, a multiple of every size of chunks."""
CODED_LEN = 4096
"""So many keys that no basis holds, or more, are weighed by codes of 8 bits."""
TABLE_STEP = 4096
"""Positions that a table of an embedding grows by."""
PAGE_ROWS = 64
"""Of tokens, or of chunks, that are kept page by page."""
LEAST_WIDTH = 256
"""Keys of so few numbers are hardly larger than their projections."""
GAIN_FACTOR = 4
"""A context is worth a shadow from so many times what a step attends to."""
MOST_RANK = 160
RANK_SHARE = 0.156
CHUNK_SIZE = 8
"""Tokens that are chosen together."""
NUM_LOCAL = 4
"""The last full chunks, which are never given away."""
QUERY_BLOCK = 64
OUTLIERS_PER_CHUNKS = (3, 16)
"""So many outliers for so many chosen chunks: 24 for 1,024 tokens, as published."""
LEAST_IN_SIGHT = 512
"""Where a step looks at a share of a context: it gains nothing from fewer tokens than these."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShadowSettings:
    """What a step attends to, and what stands for the rest.

    Args:
        budget: tokens that a step chooses.
        num_outliers: chunks of a head that stay exact on the device since their landmark says little of them.
        exact_len: generated tokens that stay exact beside the local chunks before they are compressed.
        query_block: queries of a prompt that choose together.
        rank: of the basis; None for the usual one for the width of the keys.
        energy: share of the keys' squares that a basis has to hold; otherwise keys stay exact.
        is_remote: blocks lie in host memory, which a GPU reads slowly: projections of keys are kept too, and
            what was chosen stays on the device from one step to the next. Else each step reads in the blocks
            what it chooses, and of keys on a basis nothing is kept but landmarks.
    """

    budget: int = 2048
    num_outliers: int = 48
    exact_len: int = 512
    query_block: int = QUERY_BLOCK
    rank: int | None = None
    energy: float = 0.99
    is_remote: bool = False

    @property
    def num_chosen(self) -> int:
        """Chunks that a step chooses."""
        return self.budget // CHUNK_SIZE

    @property
    def num_always(self) -> int:
        """Compressed chunks of a head that every step sees: the outliers and the first one."""
        return self.num_outliers + 1

    @property
    def step_len(self) -> int:
        """Tokens that a step attends to at least."""
        return self.budget + (self.num_outliers + NUM_LOCAL) * CHUNK_SIZE

    @property
    def least_len(self) -> int:
        """The shortest context that can be divided at all."""
        return (self.num_always + NUM_LOCAL + 1) * CHUNK_SIZE

    def rank_for(self, width: int) -> int:
        """Return the rank of the basis for keys of `width` numbers, all heads together."""
        return min(width, self.rank or max(1, min(MOST_RANK, round(RANK_SHARE * width))))


def most_bytes(settings: ShadowSettings, spec: CacheSpec, num_tokens: int) -> int:
    """Return the most that a layer keeps beside its blocks of a context of `num_tokens`. Pure.

    Where no basis holds its keys: these, most of them as codes, a landmark for each chunk, and what every
    step sees. On a GPU, which has the larger of codes and projections, two working sets too: the prompt's and
    the sequence's.
    """
    size, width = CHUNK_SIZE, spec.num_kv_heads * spec.head_dim_k
    rank, element_size = settings.rank_for(width), ITEM_BYTES[spec.dtype]
    num_chunks = max(num_tokens // size, PAGE_ROWS)
    exact = settings.num_always * size + size + PAGE_ROWS  # of the tail, whose last page is not full
    # A run is coded when it has doubled once more at the latest, and is there twice meanwhile.
    compressed = (num_chunks + min(num_chunks * size, 2 * CODED_LEN)) * width * element_size
    held = num_chunks * (size * width + 4 * spec.num_kv_heads) if num_tokens >= CODED_LEN else 0
    if settings.is_remote:
        held = max(held, num_chunks * size * rank * element_size)
        exact += 2 * settings.budget
    return exact * spec.token_bytes + compressed + held + width * rank * 4


def settings_for(view: View, num_tokens: int, *, is_remote: bool = False) -> ShadowSettings:
    """Return how a prompt of `num_tokens`, at least `least_prompt`, is shadowed as a view says. Pure."""
    outliers, per_chunks = OUTLIERS_PER_CHUNKS
    if view.is_share:
        # Beside what is chosen and the outliers a step sees the first chunk, the local ones and one in part.
        others = 1 + NUM_LOCAL + 1
        seen = view.budget * num_tokens // 100 // CHUNK_SIZE - others
        num_chosen = seen * per_chunks // (per_chunks + outliers)
    else:
        num_chosen = -(-view.budget // CHUNK_SIZE)
    return ShadowSettings(
        budget=num_chosen * CHUNK_SIZE, num_outliers=num_chosen * outliers // per_chunks, is_remote=is_remote
    )


def least_prompt(view: View) -> int:
    """Return how many tokens a prompt has at least that gets a shadow: nothing is gained by others. Pure."""
    if view.is_share:
        least = 8 * CHUNK_SIZE if view.is_forced else LEAST_IN_SIGHT
        return -(-100 * least // view.budget)
    settings = settings_for(view, 0)
    return settings.least_len if view.is_forced else GAIN_FACTOR * settings.step_len
