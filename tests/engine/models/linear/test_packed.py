"""Packed layers take the place of plain ones, and can be given other weights."""

import pytest
import torch
from torch import nn

from kvchat.engine.kernels.linear import can_pack
from kvchat.engine.kernels.native.library import library
from kvchat.engine.models.linear import packed
from kvchat.engine.models.linear.packed import (
    InterleavedLinear,
    PackedLinear,
    WidenedLinear,
    is_better_paired,
    overwrite,
    pack_linears,
    tensors_of,
)

pytestmark = [
    pytest.mark.cpu,
    pytest.mark.skipif(not can_pack(torch.zeros(512, 512)), reason="needs an x86 processor"),
]


class Model(nn.Module):
    """A head that shares the embedding's weight, a large layer, and a small one."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.embedding = nn.Embedding(600, 512)
        self.large = nn.Linear(512, 512)
        self.small = nn.Linear(512, 4)
        self.head = nn.Linear(512, 600, bias=False)
        self.head.weight = self.embedding.weight
        self.requires_grad_(False)

    def forward(self, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        hidden = self.large(self.embedding(ids))
        return self.head(hidden), self.small(hidden)


IDS = torch.arange(7)


@torch.inference_mode()
def outputs(model: Model) -> torch.Tensor:
    return torch.cat(model(IDS), dim=-1)


def write_over(model: Model, other: Model) -> None:
    """Give a model the weights of another one, which has plain layers."""
    present = dict(tensors_of(model))
    assert present.keys() == dict(other.named_parameters(remove_duplicate=False)).keys()
    for name, parameter in other.named_parameters(remove_duplicate=False):
        assert (present[name].shape, present[name].dtype) == (parameter.shape, parameter.dtype)
        overwrite(present[name], parameter)


def test_large_layers_are_packed_and_compute_the_same() -> None:
    model, plain = Model(0), outputs(Model(0))
    assert pack_linears(model) == 2
    assert isinstance(model.large, PackedLinear)
    assert isinstance(model.head, PackedLinear)
    assert type(model.small) is nn.Linear
    torch.testing.assert_close(outputs(model), plain, rtol=1e-4, atol=1e-4)


def test_other_weights_can_be_written_over_packed_ones() -> None:
    model, other = Model(0), Model(1)
    pack_linears(model)
    write_over(model, other)
    torch.testing.assert_close(outputs(model), outputs(other), rtol=1e-4, atol=1e-4)


def test_layers_whose_type_the_processor_emulates_keep_their_parameters_and_compute_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(packed, "is_better_paired", lambda weight: False)
    monkeypatch.setattr(packed, "is_better_widened", lambda weight: weight.dtype == torch.bfloat16)
    model, other, plain = Model(0).bfloat16(), Model(1).bfloat16(), outputs(Model(0).bfloat16())
    weights = [parameter.data_ptr() for parameter in model.parameters()]
    assert pack_linears(model) == 0
    assert {type(layer) for layer in (model.large, model.head, model.small)} == {WidenedLinear}
    assert [parameter.data_ptr() for parameter in model.parameters()] == weights
    torch.testing.assert_close(outputs(model), plain, rtol=2e-2, atol=2e-2)
    write_over(model, other)
    torch.testing.assert_close(outputs(model), outputs(other), rtol=2e-2, atol=2e-2)


@pytest.mark.skipif(library() is None, reason="needs the native kernels")
def test_where_the_processor_emulates_their_type_inputs_lie_in_pairs_but_where_an_embedding_reads_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(packed, "is_emulated", lambda dtype: dtype == torch.bfloat16)
    model, other, plain = Model(0).bfloat16(), Model(1).bfloat16(), outputs(Model(0).bfloat16())
    assert pack_linears(model) == 1
    assert [type(layer) for layer in (model.large, model.head, model.small)] == [
        InterleavedLinear,
        WidenedLinear,
        WidenedLinear,
    ]
    assert model.head.weight is model.embedding.weight
    torch.testing.assert_close(outputs(model), plain, rtol=2e-2, atol=2e-2)
    assert torch.equal(model.large.weight, Model(0).bfloat16().large.weight), "some multiply by it themselves"
    write_over(model, other)
    torch.testing.assert_close(outputs(model), outputs(other), rtol=2e-2, atol=2e-2)
    assert not is_better_paired(torch.zeros(8, 512, dtype=torch.bfloat16)), "most of a block would be padding"
    assert not is_better_paired(torch.zeros(512, 512)), "float32 is multiplied as it is"
