"""Native decoder layers are the reference at every level; company and threads change no bit of a row."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from kvchat.engine.kernels.decoder_layers import reference
from kvchat.engine.kernels.decoder_layers.args import (
    Activation,
    FusedLayerPool,
    FusedStatePool,
    GroupRows,
    StateRows,
    StepRows,
)
from kvchat.engine.kernels.decoder_layers.native import NativeLayers
from kvchat.engine.kernels.linear import can_pack
from kvchat.engine.kernels.native.library import Library
from kvchat.engine.kernels.paged_attention.native import span_table
from tests.engine.kernels.decoder_cases import TEXTS, Model, Shape, hidden_of, make_step, native_of
from tests.engine.kernels.native_library import EMULATED, all_levels

pytestmark = [pytest.mark.cpu, all_levels]

BF16, FP16 = torch.bfloat16, torch.float16
SHAPES = {
    "plain": Shape(),
    "odd": Shape(hidden=70, inner=91, num_heads=3, num_kv_heads=1, dim=22, vocab=97),
    "biases": Shape(has_bias=True, num_kv_heads=6),
    "head norms": Shape(has_head_norms=True, rope_dim=16, window=20),
    "four norms": Shape(
        has_after_norms=True, adds_one=True, softcap=3.0, activation=Activation.GELU_TANH, has_head_norms=True
    ),
    "sinks": Shape(has_sinks=True, chunk=50),
    "packed": Shape(hidden=600, inner=1050, num_heads=10, num_kv_heads=5, dim=64, weights="packed"),
    "bfloat16": Shape(dtype=BF16),
    "packed bfloat16": Shape(hidden=97, inner=1101, dtype=BF16, weights="packed", has_bias=True),
    "paired bfloat16": Shape(hidden=97, inner=1101, dtype=BF16, weights="paired", has_bias=True),
    "float16": Shape(dtype=FP16, inner=2500),
    "gated": Shape(mixers=("gated attention",), has_head_norms=True, adds_one=True, rope_dim=16),
    "convolutions": Shape(mixers=("convolution", "attention", "convolution"), num_taps=3, hidden=77),
    "convolutions float16": Shape(mixers=("convolution",), num_taps=3, dtype=FP16, has_bias=True),
    "delta": Shape(mixers=("delta", "gated attention", "delta")),
    "delta bfloat16": Shape(mixers=("delta",), dtype=BF16, weights="paired", value_dim=72, dim=70),
    "delta int8": Shape(mixers=("delta", "attention"), dtype=BF16, weights="int8"),
    "scans": Shape(mixers=("scan", "attention", "scan"), residual=0.22, has_one_gate=True),
    "scans bfloat16": Shape(
        mixers=("scan",), dtype=BF16, weights="paired", value_dim=24, dim=70, num_kv_heads=1
    ),
    "scans int8": Shape(mixers=("scan",), weights="int8", has_one_gate=True, inner=96),
    "halves": Shape(
        mixers=("scan",), are_halves=True, has_gates=False, activation=Activation.RELU_SQUARED, inner=91
    ),
    "no gates bfloat16": Shape(dtype=BF16, weights="paired", inner=91, has_gates=False, has_bias=True),
    "one gate": Shape(has_one_gate=True, inner=96, residual=3.0, weights="int4", has_bias=True),
    "one gate odd": Shape(has_one_gate=True, inner=91, hidden=97),
    "one gate odd bfloat16": Shape(has_one_gate=True, inner=91, dtype=BF16, weights="paired"),
    "one gate packed": Shape(has_one_gate=True, hidden=600, inner=1051, weights="packed"),
    "one gate float16": Shape(has_one_gate=True, dtype=FP16, has_after_norms=True, residual=0.5),
    "experts": Shape(experts=7, hidden=77),
    "experts bfloat16": Shape(
        experts=37, num_chosen=1, is_normalized=False, has_mlp=False, dtype=BF16, weights="paired"
    ),
    "experts float16": Shape(experts=9, is_normalized=False, dtype=FP16, residual=0.5, mixers=("scan",)),
    "experts int8": Shape(experts=4, num_chosen=4, mixers=("delta",), weights="int8", is_by_key_head=True),
    "delta by key head": Shape(mixers=("delta",), is_by_key_head=True, has_bias=True),
    "int8": Shape(weights="int8", inner=2112, has_bias=True),
    "int4": Shape(weights="int4", num_kv_heads=1),
    "int8 bfloat16": Shape(weights="int8", dtype=BF16, inner=2112, has_bias=True),
    "int4 float16": Shape(weights="int4", dtype=FP16, num_kv_heads=1),
}
all_shapes = pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())


def model_of(shape: Shape) -> Model:
    if shape.weights == "packed" and not can_pack(torch.empty(512, 512, dtype=shape.dtype)):
        pytest.skip("weights are not packed here")
    return Model(shape)


@all_shapes
def test_they_are_the_reference(shape: Shape, library: Library) -> None:
    model, step = model_of(shape), make_step(shape)
    pools, own_pools = model.pools(), model.pools()
    hidden = hidden_of(model, step)
    wanted = reference.decoder_layers(hidden, model.layers, pools, model.ropes, step)
    native = native_of(model, own_pools, library)
    found = native.hidden(hidden, step, slice(0, len(model.layers)))
    # Keys and values are rounded to the pool's type, and differ by one rounding here and there.
    tolerance = 2e-5 if shape.dtype == torch.float32 else 1e-2
    torch.testing.assert_close(found, wanted, rtol=tolerance, atol=tolerance)
    for pool, own in zip(pools, own_pools, strict=True):
        for kept, wanted_kept in zip(tensors_of(own), tensors_of(pool), strict=True):
            torch.testing.assert_close(kept, wanted_kept, rtol=tolerance, atol=tolerance)
    logits = native.logits(hidden.clone(), step)
    wanted = reference.logits(wanted, model.last_norm, model.head, step)
    torch.testing.assert_close(logits, wanted, rtol=tolerance, atol=tolerance)


def test_layers_of_a_model_may_have_other_experts_or_none(library: Library) -> None:
    model = Model(Shape(experts=7, has_mlp=False))
    others = Model(Shape(experts=300, num_chosen=8, expert_inner=99, has_mlp=False)).layers
    model.layers[1:] = [others[1], Model(Shape()).layers[2]]
    step = make_step(model.shape)
    hidden = hidden_of(model, step)
    wanted = reference.decoder_layers(hidden, model.layers, model.pools(), model.ropes, step)
    found = native_of(model, model.pools(), library).hidden(hidden, step, slice(0, 3))
    torch.testing.assert_close(found, wanted, rtol=2e-5, atol=2e-5)


def test_experts_of_which_it_is_not_known_which_are_best_give_no_numbers(library: Library) -> None:
    model = Model(Shape(experts=7, has_mlp=False))
    experts = model.layers[0].experts
    assert experts is not None
    assert isinstance(experts.router.weight, Tensor)
    experts.router.weight[3] = torch.nan
    step = make_step(model.shape)
    found = native_of(model, model.pools(), library).hidden(hidden_of(model, step), step, slice(0, 1))
    assert found.isnan().all()


def test_experts_beside_an_mlp_of_another_kind_are_refused(library: Library) -> None:
    for shape in (Shape(experts=5, has_after_norms=True), Shape(experts=5)):
        model = Model(shape)
        mlp = model.layers[0].mlp
        assert mlp is not None
        if mlp.after is None:
            model.layers[0] = replace(model.layers[0], mlp=replace(mlp, activation=Activation.GELU_TANH))
        with pytest.raises(ValueError, match="experts beside an MLP"):
            native_of(model, model.pools(), library)


def tensors_of(pool: FusedLayerPool | FusedStatePool | None) -> list[Tensor]:
    if pool is None:
        return []
    if isinstance(pool, FusedLayerPool):
        return [pool.keys, pool.values]
    return [pool.inputs] if pool.states is None else [pool.inputs, pool.states]


@all_shapes
def test_a_row_has_the_same_bits_whatever_shares_its_step(shape: Shape, library: Library) -> None:
    model = model_of(shape)
    together = logits_of(model, range(len(TEXTS)), library)
    alone = torch.cat([logits_of(model, [number], library) for number in range(len(TEXTS))])
    assert torch.equal(together, alone)


@pytest.mark.parametrize("name", ["odd", "bfloat16", "float16", "int8 bfloat16", "int4 float16"])
def test_any_number_of_rows_gives_each_the_bits_that_it_has_alone(name: str, library: Library) -> None:
    texts = [(3 * number, 1) for number in range(17)]
    model = model_of(SHAPES[name])

    def computed(kept: range) -> Tensor:
        step = make_step(model.shape, kept, texts)
        return native_of(model, model.pools(texts), library).logits(hidden_of(model, step), step)

    alone = torch.cat([computed(range(number, number + 1)) for number in range(17)])
    for num_rows in range(2, 18):
        assert torch.equal(computed(range(num_rows)), alone[:num_rows])


@pytest.mark.parametrize(
    ("name", "number"),
    [
        (name, 245)
        for name in (
            "biases",
            "four norms",
            "odd",
            "paired bfloat16",
            "int8 bfloat16",
            "int4 float16",
            "experts bfloat16",
        )
    ]
    + [(name, 33) for name in SHAPES]
    + [("paired bfloat16", number) for number in (31, 32, 240, 241)],
)
def test_a_prompt_gives_each_row_the_bits_that_it_has_a_few_at_a_time(
    name: str, number: int, library: Library
) -> None:
    """More rows than one task takes, and the same in steps of one to nineteen."""
    model, text = model_of(SHAPES[name]), ((0, number),)

    def logits(native: NativeLayers, start: int, end: int, part: int = 0) -> Tensor:
        step = part_of(make_step(model.shape, [0], text), start, end, part)
        return native.logits(hidden_of(model, step), step)

    pools, own_pools = model.pools(text), model.pools(text)
    whole = logits(native_of(model, pools, library), 0, number)
    native, ends = native_of(model, own_pools, library), [0]
    while ends[-1] < number:
        ends.append(min(ends[-1] + 1 + ends[-1] % 19, number))
    parts = [logits(native, start, end, part) for part, (start, end) in enumerate(pairwise(ends))]
    assert torch.equal(whole, torch.cat(parts))
    for pool, own in zip(pools, own_pools, strict=True):
        for one, other in zip(tensors_of(pool), tensors_of(own), strict=True):
            is_state = isinstance(pool, FusedStatePool)
            assert torch.equal(one[1], other[len(parts) % 2]) if is_state else torch.equal(one, other)


@pytest.mark.covering(1)
@all_shapes
def test_a_row_has_the_same_bits_with_any_number_of_threads(
    shape: Shape, library: Library, level: str, threads: None
) -> None:
    """Several times: where cores are few, the first thread may have done all before another begins. Emulated
    threads run in turn."""
    model = model_of(shape)
    torch.set_num_threads(1)
    alone = logits_of(model, range(len(TEXTS)), library)
    for num_threads in (2, 3) * (1 if level.startswith(EMULATED) else 10):
        torch.set_num_threads(num_threads)
        assert torch.equal(logits_of(model, range(len(TEXTS)), library), alone)


@pytest.mark.covering(1)
@pytest.mark.parametrize("name", ["paired bfloat16", "int8 bfloat16", "biases", "head norms", "experts int8"])
def test_prompts_and_answers_have_the_same_bits_in_one_step_with_any_number_of_threads(
    name: str, library: Library, level: str, threads: None
) -> None:
    """What stands between products is divided then, too."""
    model, texts = model_of(SHAPES[name]), ((0, 150), (130, 1), (17, 4), (20, 70), (290, 1), (6, 40))

    def computed(kept: Sequence[int]) -> Tensor:
        step = make_step(model.shape, kept, texts)
        return native_of(model, model.pools(texts), library).logits(hidden_of(model, step), step)

    torch.set_num_threads(1)
    alone = torch.cat([computed([number]) for number in range(len(texts))])
    for num_threads in (1, 2, 3) * (1 if level.startswith(EMULATED) else 3):
        torch.set_num_threads(num_threads)
        assert torch.equal(computed(range(len(texts))), alone)


def logits_of(model: Model, texts: range | list[int], library: Library) -> Tensor:
    step = make_step(model.shape, texts)
    return native_of(model, model.pools(), library).logits(hidden_of(model, step), step)


def part_of(step: StepRows, start: int, end: int, part: int = 0) -> StepRows:
    """Return some rows of a step of one text. States go from one slot to another, and back."""
    group = step.groups[0]
    spans = [replace(group.spans[0], q_end=end - start, position=start)]
    rows = GroupRows(slots=group.slots[start:end].contiguous(), spans=spans, table=span_table(spans).rows)
    run = [0, 0, end - start, part % 2 if start else -1, (part + 1) % 2]
    states = StateRows(runs=torch.tensor([run]), offsets=torch.tensor([0, 1]))
    return StepRows(
        positions=step.positions[start:end].contiguous(),
        groups=[rows, replace(rows)],
        sampling=torch.arange(end - start),
        states=[states, states],
    )


def test_only_rows_that_are_wanted_have_logits(library: Library) -> None:
    model = model_of(SHAPES["plain"])
    step = make_step(model.shape)
    hidden = hidden_of(model, step)
    native = native_of(model, model.pools(), library)
    all_logits = native.logits(hidden.clone(), step)
    some = replace(step, sampling=torch.tensor([2, 5]))
    assert torch.equal(native.logits(hidden.clone(), some), all_logits[[2, 5]])
    none = replace(step, sampling=torch.tensor([], dtype=torch.long))
    assert native.logits(hidden.clone(), none).shape == (0, model.shape.vocab)
