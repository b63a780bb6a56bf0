"""Muon moves matrices by steps whose singular values are all about equal."""

from __future__ import annotations

import pytest
import torch

from tools.starter.muon import Muon, orthogonal

pytestmark = [pytest.mark.cpu, pytest.mark.usefixtures("one_thread")]


def test_singular_values_are_moved_near_to_one() -> None:
    generator = torch.Generator().manual_seed(0)
    scales = torch.logspace(0, -1.5, 64)
    matrices = torch.randn(3, 64, 128, generator=generator) * scales[:, None]
    assert torch.linalg.svdvals(matrices[0]).min() < 0.1 * torch.linalg.svdvals(matrices[0]).max()
    values = torch.linalg.svdvals(orthogonal(matrices))
    assert values.min() > 0.3
    assert values.max() < 1.3


@pytest.mark.parametrize("shape", [(32, 64), (64, 32), (32, 32)])
def test_a_step_goes_against_the_gradient_and_drops_it(shape: tuple[int, int]) -> None:
    generator = torch.Generator().manual_seed(0)
    matrix = torch.zeros(shape, requires_grad=True)
    grad = torch.randn(shape, generator=generator)
    matrix.grad = grad.clone()
    Muon([matrix], weight_decay=0.0).step(0.1)
    assert matrix.grad is None
    assert (matrix * grad).sum() < 0
    longest = torch.linalg.svdvals(matrix.detach()).max()
    assert 0.05 < longest < 0.2


def test_each_matrix_gets_its_own_update() -> None:
    generator = torch.Generator().manual_seed(0)
    shapes = [(32, 64), (64, 32), (32, 64), (16, 16)]
    together = [torch.randn(shape, generator=generator).requires_grad_() for shape in shapes]
    alone = [matrix.detach().clone().requires_grad_() for matrix in together]
    for first, second in zip(together, alone, strict=True):
        first.grad = torch.randn(first.shape, generator=generator)
        second.grad = first.grad.clone()
    Muon(together, weight_decay=0.1).step(0.1)
    for matrix in alone:
        Muon([matrix], weight_decay=0.1).step(0.1)
    for first, second in zip(together, alone, strict=True):
        torch.testing.assert_close(first, second, rtol=1e-2, atol=1e-2)
