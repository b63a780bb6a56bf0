"""Many rows through decoder layers with rounded inputs, where a processor multiplies bfloat16."""

from dataclasses import replace
from itertools import pairwise

import pytest
import torch

from kvchat.engine.kernels.cpu_dtypes import is_multiplied_natively
from kvchat.engine.kernels.decoder_layers import reference
from kvchat.engine.kernels.decoder_layers.native import rounds_products
from kvchat.engine.kernels.native.library import Library
from kvchat.engine.kernels.quantized_linear import Coding
from tests.engine.kernels.decoder_cases import Model, Shape, hidden_of, make_step, native_of
from tests.engine.kernels.native_library import native
from tests.engine.kernels.test_decoder_layers import part_of

pytestmark = pytest.mark.cpu

BF16 = torch.bfloat16
TEXTS = ((0, 130), (130, 1), (17, 21), (290, 40))
SHAPES = {
    "packed": Shape(hidden=97, inner=1101, dtype=BF16, weights="packed", has_bias=True),
    "paired": Shape(hidden=97, inner=1101, dtype=BF16, weights="paired", has_head_norms=True),
    "int8": Shape(weights="int8", dtype=BF16, inner=2112, has_bias=True),
    "int4": Shape(weights="int4", dtype=BF16, num_kv_heads=1, has_after_norms=True),
    "int8, short groups with minima": Shape(weights=Coding(bits=8, group=16, has_minima=True), dtype=BF16),
    "int4, with minima": Shape(weights=Coding(bits=4, has_minima=True), dtype=BF16),
    "int4, short groups, units of 48": Shape(weights=Coding(bits=4, group=16), dtype=BF16, inner=176),
    "int4, groups longer than a strip": Shape(
        weights=Coding(bits=4, group=512), dtype=BF16, hidden=512, inner=1024, num_heads=16, num_kv_heads=4
    ),
    "int8, long groups, units of 16": Shape(
        weights=Coding(bits=8, group=64),
        dtype=BF16,
        hidden=128,
        inner=320,
        num_heads=8,
        num_kv_heads=1,
        dim=16,
    ),
}
all_shapes = pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())


@pytest.fixture
def level() -> Library:
    if not is_multiplied_natively("avx512"):
        pytest.skip("this processor does not multiply bfloat16, or in tiles")
    found = native("avx512")
    if not rounds_products(found):
        pytest.skip("the compiler does not know the instructions")
    return found


@all_shapes
def test_they_are_the_reference(shape: Shape, level: Library) -> None:
    assert_is_the_reference(Model(shape), level)


def assert_is_the_reference(model: Model, level: Library, share: float = 0.8) -> None:
    """Hold each layer to the definition, beside the difference that rounding makes.

    A number that lies between two others becomes either, and moves its row by no more than rounding does; a
    share of rows has none. Texts of one row: a key or a value would move all later rows of its text.
    """
    texts = tuple((7 * number, 1) for number in range(40))  # the last panel is not full
    step = make_step(model.shape, range(len(texts)), texts)
    hidden = hidden_of(model, step)
    layers = native_of(model, model.pools(texts), level)
    assert layers.suits_rounded
    for number, layer in enumerate(model.layers):
        wanted, exact = (
            reference.decoder_layers(
                hidden, [layer], model.pools(texts)[number:][:1], model.ropes, step, is_rounded=is_rounded
            )
            for is_rounded in (True, False)
        )
        found = layers.hidden(hidden, step, slice(number, number + 1), is_rounded=True)
        distances = (found - wanted).norm(dim=1) / (exact - wanted).norm(dim=1)
        assert distances.quantile(share) < 1e-2
        assert distances.max() < 1.5


@pytest.mark.parametrize("weights", ["int8", "int4", Coding(bits=8, group=16, has_minima=True)])
@pytest.mark.parametrize(("small", "large"), [(1e-20, 1.0), (1e-31, 1.0), (1.0, 1e12)])
def test_inputs_of_any_size_are_rounded_alike(
    weights: str | Coding, small: float, large: float, level: Library
) -> None:
    """Small ones reach products of the attention, and large ones, by the norm before it, those of the MLP."""
    model = Model(Shape(weights=weights, dtype=BF16))
    layer = model.layers[0]
    assert layer.mlp is not None
    before = layer.mlp.before
    scaled = replace(before, weight=(before.weight.float() * large).bfloat16())
    model.layers[0] = replace(layer, mlp=replace(layer.mlp, before=scaled))
    texts = tuple((0, 1) for _ in range(40))
    step = make_step(model.shape, range(len(texts)), texts)
    hidden = hidden_of(model, step) * small
    first, pools = model.layers[:1], model.pools(texts)[:1]
    wanted = reference.decoder_layers(hidden, first, pools, model.ropes, step, is_rounded=True)
    found = native_of(model, model.pools(texts), level).hidden(hidden, step, slice(0, 1), is_rounded=True)
    added = (wanted - hidden).double().norm(dim=1)
    assert (added > 0).all()
    assert ((found - wanted).double().norm(dim=1) / added).quantile(0.5) < 1e-3


@pytest.mark.parametrize("weights", ["int8", "int4", Coding(bits=8, group=16, has_minima=True)])
def test_a_number_that_is_none_spoils_its_own_row_alone(weights: str | Coding, level: Library) -> None:
    """Each row is a text of its own."""
    shape = Shape(weights=weights, dtype=BF16)
    texts = tuple((0, 1) for _ in range(40))
    model, step = Model(shape), make_step(shape, range(len(texts)), texts)
    hidden = hidden_of(model, step)
    layers = native_of(model, model.pools(texts), level)
    whole = layers.hidden(hidden, step, slice(0, 1), is_rounded=True)
    for bad in (float("nan"), float("inf")):
        spoilt = hidden.clone()
        spoilt[7, 5] = bad
        found = layers.hidden(spoilt, step, slice(0, 1), is_rounded=True)
        assert found[7].isnan().all()
        others = [row for row in range(len(texts)) if row != 7]
        assert torch.equal(found[others], whole[others])


def test_a_narrow_layer_reads_nothing_of_a_wider_one_before_it(level: Library) -> None:
    """Its last block of 32 inputs is half a block; what lies behind it is the other's."""
    wide, narrow = (
        Model(Shape(weights=Coding(bits=8, group=16), dtype=BF16, inner=inner, num_layers=1))
        for inner in (192, 176)
    )
    step = make_step(wide.shape, range(len(TEXTS)), TEXTS)
    hidden = hidden_of(wide, step)
    both = replace(wide.shape, num_layers=2)
    together = Model(both, [])
    together.layers = [wide.layers[0], narrow.layers[0]]
    layers = native_of(together, together.pools(TEXTS), level)
    found = layers.hidden(hidden, step, slice(0, 2), is_rounded=True)
    first = layers.hidden(hidden, step, slice(0, 1), is_rounded=True)
    assert torch.equal(found, layers.hidden(first, step, slice(1, 2), is_rounded=True))


@pytest.mark.parametrize(
    "name", ["packed", "paired", "int8", "int4, with minima", "int4, short groups, units of 48"]
)
def test_a_row_has_the_same_bits_however_a_prompt_is_cut_and_with_any_number_of_threads(
    name: str, level: Library, threads: None
) -> None:
    """More rows than one task takes, and the same in steps of one to nineteen."""
    number, model = 245, Model(SHAPES[name])
    text = ((0, number),)
    ends = [0]
    while ends[-1] < number:
        ends.append(min(ends[-1] + 1 + ends[-1] % 19, number))
    found = []
    for num_threads, cuts in ((1, [0, number]), (2, [0, number]), (3, [0, number]), (2, ends), (9, ends)):
        torch.set_num_threads(num_threads)
        layers, parts = native_of(model, model.pools(text), level), []
        for start, end in pairwise(cuts):
            step = part_of(make_step(model.shape, [0], text), start, end)
            parts.append(layers.logits(hidden_of(model, step), step, is_rounded=True))
        found.append(torch.cat(parts))
    for other in found[1:]:
        assert torch.equal(other, found[0])
