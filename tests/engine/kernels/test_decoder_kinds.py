"""Layers of one kind compute the same with other numbers: one of them is tried for all."""

from dataclasses import replace

import pytest
import torch

from tests.engine.kernels.decoder_cases import Model, Shape

pytestmark = pytest.mark.cpu

PLACES = ("before_attention", "before_mlp", "after_attention", "after_mlp")


@pytest.mark.parametrize("place", [*PLACES, "query_norm", "key_norm"])
def test_layers_whose_norms_differ_are_of_two_kinds(place: str) -> None:
    model = Model(Shape(has_after_norms=True, has_head_norms=True))
    layer = model.layers[0]
    norm = getattr(layer if place in PLACES else layer.heads, place)
    for other in (replace(norm, epsilon=1e-6), replace(norm, adds_one=True)):
        parts = {place: other} if place in PLACES else {"mixer": replace(layer.heads, **{place: other})}
        assert replace(layer, **parts).kind != layer.kind
    numbers = replace(norm, weight=torch.zeros_like(norm.weight))
    if place in PLACES:
        assert replace(layer, **{place: numbers}).kind == layer.kind
