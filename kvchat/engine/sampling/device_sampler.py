"""Device sampler: draws the tokens of all rows where the logits lie.

Follows from tensors alone and waits for nothing. A row's token follows from its own logits, parameters and
number; which of the tokens left is drawn for a number is another choice than the sampler's on a processor,
and as good. Dimensions: R rows, V vocabulary.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from kvchat.engine.api.sampling_params import SamplingParams
from kvchat.engine.kernels.triton_support import upload

LEAST_TEMPERATURE = 1e-6
"""Below this, float32 leaves only the most probable token anyway, and dividing by less would overflow."""


class Drawn:
    """Tokens where they were drawn, on their way to the host.

    Args:
        tokens: a token for each row [R], int64.
        logits: [R, V], that they were drawn from.
    """

    def __init__(self, tokens: Tensor, logits: Tensor) -> None:
        self.tokens = tokens
        found = torch.stack([tokens, torch.isfinite(logits.amax(dim=1)).long()], dim=1)
        self._host = torch.empty(found.shape, dtype=found.dtype, pin_memory=found.is_cuda)
        self._host.copy_(found, non_blocking=True)
        self._copied: torch.cuda.Event | None = None
        if found.is_cuda:
            self._copied = torch.cuda.Event()
            self._copied.record()

    def tokens_here(self) -> list[int | None]:
        """Return the tokens; None of a row of logits without a usable number. Waits for them."""
        if self._copied is not None:
            self._copied.synchronize()
        return [token if is_usable else None for token, is_usable in self._host.tolist()]


def draw(logits: Tensor, params: Sequence[SamplingParams], numbers: Sequence[float]) -> Tensor:
    """Return a token for each row [R], int64.

    Args:
        logits: [R, V], float32.
        numbers: of each row, in [0, 1): where in the distribution that its parameters leave the token lies.
    """
    greedy = logits.argmax(dim=1)
    if all(each.is_greedy for each in params):
        return greedy
    rows = [_row(each, number) for each, number in zip(params, numbers, strict=True)]
    columns = upload(rows, logits.device, torch.float64)
    is_greedy, temperature, top_k, top_p, min_p, _ = columns.float().unbind(1)
    scaled = (logits - logits.amax(dim=1, keepdim=True)) / temperature[:, None]
    scaled, order = scaled.sort(dim=1, descending=True)
    last = top_k.long().clamp(max=scaled.shape[1])[:, None] - 1
    scaled = scaled.masked_fill(scaled < scaled.gather(1, last), float("-inf"))
    probabilities = scaled.softmax(dim=1)
    before = probabilities.cumsum(dim=1) - probabilities
    is_cut = (before >= top_p[:, None]) & (top_p[:, None] < 1)
    is_cut |= probabilities < min_p[:, None] * probabilities[:, :1]
    is_cut[:, 0] = False
    sums = probabilities.masked_fill(is_cut, 0).double().cumsum(dim=1)
    place = (sums <= columns[:, 5:] * sums[:, -1:]).sum(dim=1, keepdim=True)
    # Rounding may leave a number behind the last sum: the last token that has a share is meant.
    num_left = (sums < sums[:, -1:]).sum(dim=1, keepdim=True)
    drawn = order.gather(1, torch.minimum(place, num_left))[:, 0]
    return torch.where(is_greedy.bool(), greedy, drawn)


def _row(params: SamplingParams, number: float) -> tuple[float, ...]:
    """Return the numbers of a row; what is not asked for as numbers that change nothing."""
    top_k = params.top_k if params.top_k is not None else 2**24
    temperature = 1.0 if params.is_greedy else max(params.temperature, LEAST_TEMPERATURE)
    return float(params.is_greedy), temperature, float(top_k), params.top_p, params.min_p, number
