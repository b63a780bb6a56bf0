"""Logits → token ids. Each request draws from its own generator, so its text does not depend on the batch.

Dimensions: R rows, V vocabulary.
"""

from collections.abc import Sequence

import torch
from torch import Generator, Tensor

from kvchat.engine.api.ids import RequestId
from kvchat.engine.api.sampling_params import SamplingParams


class Sampler:
    """Chooses one token per row."""

    def __init__(self, seed: int | None) -> None:
        """Args:
        seed: seed of the seeds of requests that bring none; None: from the system.
        """
        self._seeds = Generator()
        if seed is None:
            self._seeds.seed()
        else:
            self._seeds.manual_seed(seed)
        self._generators: dict[RequestId, Generator] = {}

    def sample(
        self, logits: Tensor, requests: Sequence[tuple[RequestId, SamplingParams]]
    ) -> list[int | None]:
        """Return one token id per row of `logits` [R, V]; None where a row has no usable number."""
        greedy = logits.argmax(dim=-1).tolist()
        finite = torch.isfinite(logits.amax(dim=-1)).tolist()
        return [
            None
            if not finite[row]
            else greedy[row]
            if params.is_greedy
            else self._draw(logits[row], request, params)
            for row, (request, params) in enumerate(requests)
        ]

    def forget(self, request: RequestId) -> None:
        """Drop the generator of a finished request."""
        self._generators.pop(request, None)

    def _choose(self, logits: Tensor, greedy: int, request: RequestId, params: SamplingParams) -> int:
        return greedy if params.is_greedy else self._draw(logits, request, params)

    def _draw(self, logits: Tensor, request: RequestId, params: SamplingParams) -> int:
        probabilities = distribution(logits, params).cpu()
        generator = self._generators.get(request)
        if generator is None:
            generator = self._generators[request] = self._new_generator(params.seed)
        return int(torch.multinomial(probabilities, 1, generator=generator))

    def _new_generator(self, seed: int | None) -> Generator:
        if seed is None:
            seed = int(torch.randint(2**62, (1,), generator=self._seeds))
        return Generator().manual_seed(seed)


def distribution(logits: Tensor, params: SamplingParams) -> Tensor:
    """Return the probabilities [V] that `params` leaves of `logits` [V]: temperature, top-k, then top-p."""
    scaled = logits / params.temperature
    if params.top_k is not None and params.top_k < scaled.numel():
        least = scaled.topk(params.top_k).values[-1]
        scaled = scaled.masked_fill(scaled < least, float("-inf"))
    probabilities = scaled.softmax(dim=-1)
    if params.top_p < 1:
        ordered, order = probabilities.sort(descending=True)
        before = ordered.cumsum(dim=-1) - ordered
        probabilities = probabilities.index_fill(0, order[before >= params.top_p], 0.0)
    return probabilities / probabilities.sum()
