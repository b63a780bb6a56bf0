"""Inverse and forward RoPE of cached keys, with the model's own rotary embedding.

Dimensions: n tokens, H_kv heads, D head size, R <= D rotated numbers of a head.
"""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from kvchat.engine.kernels.shadow_kv import reference
from kvchat.engine.kernels.shadow_kv.args import Rotations
from kvchat.errors import UnsupportedModel

CosinesAndSines = Callable[[Tensor], tuple[Tensor, Tensor]]
"""Positions [1, n] → cosines and sines [1, n, R], as the model's own module returns them."""

HALVES = "halves"
"""Each number of the first half turns with its counterpart in the second."""
NEIGHBOURS = "neighbours"
"""Neighbours turn together."""

FAR = 2**24
"""A position behind which embeddings that change with the length have changed, however long the contexts are
that they were made for: up to here float32 counts positions.
"""
TOLERANCE = 1e-3
FITS = 2e-2
"""Relative difference up to which turned keys are the model's: they may have been rounded to 16 bits."""


class Rotary:
    """Turns keys as the model does, and back.

    Args:
        source: the model's cosines and sines; scaled ones are what they are.
        layout: which numbers of a head turn together, `HALVES` or `NEIGHBOURS`.

    Raises:
        UnsupportedModel: the embedding changes with the length, or is no rotation times one number.
    """

    def __init__(self, source: CosinesAndSines, layout: str = HALVES) -> None:
        self.source = source
        self.layout = layout
        self.scaling = self._checked_scaling()

    @classmethod
    def found(cls, source: CosinesAndSines, before: Tensor, after: Tensor, positions: Tensor) -> "Rotary":
        """Return the embedding that turns keys `before` into `after` [n, H_kv, D] at `positions` [n].

        Raises:
            UnsupportedModel: none of the known ones does.
        """
        for layout in (HALVES, NEIGHBOURS):
            rotary = cls(source, layout)
            error = (rotary.turned(before, positions) - after.float()).norm()
            if error <= FITS * after.float().norm():
                return rotary
        raise UnsupportedModel("this model turns its keys in a way that is unknown: they have no shadow")

    def turned(self, keys: Tensor, positions: Tensor) -> Tensor:
        """Return keys [n, H_kv, D] with the embedding of their `positions` [n], float32."""
        return reference.turned(keys, self._at(positions[:, None]))

    def unturned(self, keys: Tensor, positions: Tensor) -> Tensor:
        """Return keys [n, H_kv, D] as they were before it, float32."""
        turns = self._at(positions[:, None])
        back = reference.turned(keys, replace(turns, sines=-turns.sines))
        back[..., : 2 * turns.cosines.shape[-1]] /= self.scaling**2
        return back

    def turns(self, num_positions: int, device: torch.device) -> Rotations:
        """Return the embedding at the first `num_positions` positions, as kernels read it on the device."""
        return self._at(torch.arange(num_positions, device=device))

    def _at(self, positions: Tensor) -> Rotations:
        """Return the embedding at `positions` [...], however the source orders cosines and sines."""
        cosines, sines = (side[0].float() for side in self.source(positions.flatten()[None]))
        if torch.equal(*cosines.chunk(2, dim=-1)):
            cosines, sines = (side.chunk(2, dim=-1)[0] for side in (cosines, sines))
        else:  # of each pair behind each other
            cosines, sines = cosines[:, ::2], sines[:, ::2]
        cosines, sines = (side.contiguous().view(*positions.shape, -1) for side in (cosines, sines))
        return Rotations(cosines=cosines, sines=sines, are_neighbours=self.layout == NEIGHBOURS)

    def _checked_scaling(self) -> float:
        near = torch.arange(64)
        cosines, sines = self.source(near[None])
        if cosines.shape[-1] % 2:
            raise UnsupportedModel(
                f"a rotary embedding of {cosines.shape[-1]} numbers is no rotation of pairs"
            )
        for side in (cosines[0], sines[0]):
            halves, pairs = side.chunk(2, dim=-1), (side[:, ::2], side[:, 1::2])
            if not (torch.equal(*halves) or torch.equal(*pairs)):
                raise UnsupportedModel("this rotary embedding turns the numbers of a pair by two angles")
        self._check_length(near, cosines)
        squares = cosines.double() ** 2 + sines.double() ** 2
        scaling = float(squares.mean().sqrt())
        if scaling == 0 or (squares - scaling**2).abs().max() > TOLERANCE * scaling**2:
            raise UnsupportedModel("this rotary embedding does not keep the lengths of keys alike")
        return scaling

    def _check_length(self, near: Tensor, cosines: Tensor) -> None:
        far, _ = self.source(torch.cat((near, torch.tensor([FAR])))[None])
        again, _ = self.source(near[None])
        if not (torch.equal(far[:, :-1], cosines) and torch.equal(again, cosines)):
            raise UnsupportedModel(
                "this rotary embedding changes with the length of the context: keys have no shadow"
            )
