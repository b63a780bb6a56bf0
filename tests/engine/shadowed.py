"""What a model computes by itself where, behind a prompt, each step chooses which chunks of it are seen."""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import torch
from torch import Tensor

from kvchat.engine.formats.shadow.settings import CHUNK_SIZE, NUM_LOCAL, ShadowSettings
from tests.engine.masked import MaskedHeads


class Shadowed(MaskedHeads):
    """A model of which each query sees chosen chunks.

    Chunks are chosen by the weights of their best keys, one by one and in float64. Nothing that was generated
    is given away: it fits into what stays exact.
    """

    def __init__(self, model_dir: Path, settings: ShadowSettings) -> None:
        super().__init__(model_dir)
        self._settings = settings
        self._cuts: Sequence[int] = ()

    def logits(self, ids: Sequence[int], cuts: Sequence[int]) -> Tensor:
        """Return the logits behind every token [T, V].

        Args:
            cuts: the prompt's end, and behind it where queries begin to choose together, and end, ascending.
        """
        self._cuts = cuts
        return self.masked_logits(ids)

    def hidden(self, layer: int, query: Tensor, key: Tensor) -> Tensor:
        group = len(query) // len(key)
        hidden = self.behind(layer, len(query), query.shape[1])
        if not self.has_window(layer):
            for head, own in enumerate(key.double()):
                heads = slice(head * group, (head + 1) * group)
                self._hide(hidden[heads], query[heads].double(), own)
        return hidden

    def _hide(self, hidden: Tensor, query: Tensor, keys: Tensor) -> None:
        """Note what the queries [G, T, D] of the heads that share keys [T, D] do not see [G, T, T]."""
        size, settings = CHUNK_SIZE, self._settings
        chunks = keys[: (self._cuts[0] // size - NUM_LOCAL) * size].unflatten(0, (-1, size))
        means = chunks.mean(dim=1)
        alike = torch.cosine_similarity(chunks, means[:, None], dim=2).amin(dim=1)[1:]
        always = {0, *(alike.argsort()[: settings.num_outliers] + 1).tolist()}
        others = [number for number in range(len(chunks)) if number not in always]
        for start, end in pairwise(self._cuts):
            best = (chunks[others] @ query[:, start:end].flatten(0, 1).T).amax(dim=1)  # [n, G * Q]
            order = best.softmax(dim=0).amax(dim=1).argsort(descending=True)
            for place in order[settings.num_chosen :].tolist():
                hidden[:, start:end, others[place] * size : (others[place] + 1) * size] = True
