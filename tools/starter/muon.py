"""The Muon optimiser: momentum whose matrices are made orthogonal before they are applied."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from tools.starter.precision import PRODUCT_DTYPE

MOMENTUM = 0.95
# A polynomial of degree five that drives all singular values near to one within five steps.
COEFFICIENTS = (3.4445, -4.7750, 2.0315)
NUM_STEPS = 5


def orthogonal(matrices: Tensor) -> Tensor:
    """Return [N, R, C] matrices with R <= C and all their singular values moved near to one."""
    a, b, c = COEFFICIENTS
    x = (matrices / (matrices.norm(dim=(-2, -1), keepdim=True) + 1e-7)).to(PRODUCT_DTYPE)
    for _ in range(NUM_STEPS):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.float()


class Muon:
    """Updates matrices; those of one shape together, which is faster.

    Args:
        matrices: Parameters with two dimensions.
        weight_decay: Share of a weight removed at each step, times the rate.
    """

    def __init__(self, matrices: Iterable[Tensor], weight_decay: float) -> None:
        self.momenta = {matrix: torch.zeros_like(matrix) for matrix in matrices}
        self._weight_decay = weight_decay

    def _groups(self) -> Iterator[list[Tensor]]:
        shapes: dict[tuple[int, ...], list[Tensor]] = {}
        for matrix in self.momenta:
            shapes.setdefault(tuple(sorted(matrix.shape)), []).append(matrix)
        yield from shapes.values()

    @torch.no_grad()
    def step(self, rate: float) -> None:
        """Apply the gradients and drop them."""
        for group in self._groups():
            wide = []
            for matrix in group:
                grad, momentum = matrix.grad, self.momenta[matrix]
                assert grad is not None
                momentum.lerp_(grad, 1 - MOMENTUM)
                ahead = grad.lerp(momentum, MOMENTUM)
                wide.append(ahead if ahead.shape[0] <= ahead.shape[1] else ahead.T)
                matrix.grad = None
            for matrix, update in zip(group, orthogonal(torch.stack(wide)), strict=True):
                rows, columns = matrix.shape
                matrix.mul_(1 - rate * self._weight_decay)
                scale = max(1.0, rows / columns) ** 0.5
                matrix.add_(update if rows <= columns else update.T, alpha=-rate * scale)
