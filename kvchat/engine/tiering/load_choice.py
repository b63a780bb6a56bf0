"""Load a stored prefix, compute it, or both at once: what the measured rates say. Pure arithmetic.

Computing goes from the front and gets dearer with every block, loading comes from the tail at an even pace.
Both at once end where the two meet.

Source: Cake (arXiv 2410.03065), section 4.
"""

from collections.abc import Callable, Mapping

from kvchat.engine.api.events import LoadChoice, LoadEstimate
from kvchat.engine.api.snapshot import Tier
from kvchat.engine.memory.rates import Rates

LEAST_GAIN_S = 0.1
"""Loading is left alone unless something else is faster by this much, and by a tenth."""


def meeting(num_blocks: int, compute_s: Callable[[int], float], load_block_s: float) -> int:
    """Return how many of `num_blocks` to compute so that computing and loading end as early as possible.

    Args:
        compute_s: seconds to compute the first n of them; grows with n.
        load_block_s: seconds to load one.
    """
    low, high = 0, num_blocks
    while low < high:
        middle = (low + high) // 2
        if compute_s(middle) >= (num_blocks - middle) * load_block_s:
            high = middle
        else:
            low = middle + 1
    splits = (split for split in (low - 1, low) if split >= 0)
    return min(splits, key=lambda split: max(compute_s(split), (num_blocks - split) * load_block_s))


def weigh(
    rates: Rates, *, present_len: int, prefix_len: int, num_bytes: Mapping[Tier, int], block_size: int
) -> LoadEstimate:
    """Estimate what it takes to have tokens `[present_len, prefix_len)`, and choose.

    Args:
        present_len: tokens that are on the device.
        num_bytes: what would have to be loaded, by the tier it comes from.
    """
    num_tokens = prefix_len - present_len
    load_s = sum(rates.seconds_to_load(tier, count) for tier, count in num_bytes.items())
    compute_s = rates.seconds_to_compute(num_tokens, present_len)
    num_blocks = max(1, -(-num_tokens // block_size))

    def front_s(num: int) -> float:
        return rates.seconds_to_compute(min(num * block_size, num_tokens), present_len)

    split = meeting(num_blocks, front_s, load_s / num_blocks)
    both_s = max(front_s(split), load_s * (num_blocks - split) / num_blocks)
    best_s = min(compute_s, both_s)
    if load_s - best_s < max(LEAST_GAIN_S, load_s / 10):
        return LoadEstimate(choice=LoadChoice.LOAD, load_s=load_s, compute_s=compute_s, expected_s=load_s)
    choice = LoadChoice.COMPUTE if split >= num_blocks - 1 else LoadChoice.BOTH
    expected_s = compute_s if choice is LoadChoice.COMPUTE else both_s
    return LoadEstimate(choice=choice, load_s=load_s, compute_s=compute_s, expected_s=expected_s)
