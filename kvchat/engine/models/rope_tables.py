"""Cosines and sines of a model's rotary embeddings, as tables that grow with the positions in use."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from kvchat.engine.kernels.decoder_layers.args import RopeTable

_LEAST = 1024
"""Positions of the first tables."""

Rotary = Callable[[Tensor], tuple[Tensor, Tensor]]
"""Positions [1, n] → cosines and sines [1, n, D_rope]."""


class RopeTables:
    """Tables of all rotary embeddings of a model, for positions [0, num_positions).

    Args:
        most: positions that they ever hold: behind the longest context some embeddings change all others.
    """

    def __init__(self, rotaries: Sequence[Rotary], most: int) -> None:
        self._rotaries = rotaries
        self._most = most
        self.num_positions = 0
        self.tables: list[RopeTable] = []

    def grow(self, num_positions: int) -> None:
        """Make the tables hold so many positions, or some more."""
        rounded = max(_LEAST, 1 << (num_positions - 1).bit_length())
        self.num_positions = max(num_positions, min(rounded, self._most))
        positions = torch.arange(self.num_positions)[None]
        self.tables = [
            RopeTable(cosines=cosines[0].float().contiguous(), sines=sines[0].float().contiguous())
            for cosines, sines in (rotary(positions) for rotary in self._rotaries)
        ]
