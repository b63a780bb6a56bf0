"""Layers of one kind compute the same with other numbers: one of them is tried for all."""

from dataclasses import replace

import pytest
import torch

from kvchat.engine.kernels.decoder_layers.args import DecoderLayer, Norm
from tests.engine.kernels.decoder_cases import Model, Shape

pytestmark = pytest.mark.cpu


def with_norm(layer: DecoderLayer, place: str, norm: Norm) -> DecoderLayer:
    half, name = place.split(".")
    if half == "heads":
        assert layer.mixing is not None
        return replace(layer, mixing=replace(layer.mixing, mixer=replace(layer.heads, **{name: norm})))
    return replace(layer, **{half: replace(getattr(layer, half), **{name: norm})})


@pytest.mark.parametrize(
    "place",
    ["mixing.before", "mixing.after", "mlp.before", "mlp.after", "heads.query_norm", "heads.key_norm"],
)
def test_layers_whose_norms_differ_are_of_two_kinds(place: str) -> None:
    layer = Model(Shape(has_after_norms=True, has_head_norms=True)).layers[0]
    half, name = place.split(".")
    norm = getattr(getattr(layer, half), name)
    for other in (replace(norm, epsilon=1e-6), replace(norm, adds_one=True)):
        assert with_norm(layer, place, other).kind != layer.kind
    numbers = replace(norm, weight=torch.zeros_like(norm.weight))
    assert with_norm(layer, place, numbers).kind == layer.kind
