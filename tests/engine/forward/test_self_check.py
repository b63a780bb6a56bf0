"""A model that computes something else on the cache than by itself is found at load."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from kvchat.engine.forward.model_pass import PackedPass
from kvchat.engine.forward.model_route import ModelPlan, choose_route
from kvchat.engine.forward.runner import InputBatch
from kvchat.engine.forward.self_check import require_own_logits
from kvchat.engine.memory.device_pool import DevicePool
from kvchat.engine.models.load import LoadedModel, load_model
from kvchat.errors import UnsupportedModel
from tests.engine.conftest import TinyModels

pytestmark = pytest.mark.cpu


class Changed:
    """A forward pass that gets its rows wrong."""

    def __init__(self, inner: PackedPass, **changes: object) -> None:
        self.device = inner.device
        self._inner = inner
        self._changes = changes

    def logits(self, row: InputBatch) -> Tensor:
        zeros = torch.zeros_like(row.positions)
        return self._inner.logits(replace(row, **dict.fromkeys(self._changes, zeros)))


def loaded(model_dir: Path, dtype: str) -> tuple[LoadedModel, ModelPlan]:
    model = load_model(model_dir, dtype, torch.device("cpu"))
    return model, choose_route(model)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("kind", ["llama", "gemma3", "gpt2"])
def test_a_model_that_computes_its_own_logits_passes(kind: str, dtype: str, tiny: TinyModels) -> None:
    model, served = loaded(tiny(kind), dtype)
    require_own_logits(model, served.groups, served.make_pass)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_positions_that_get_lost_are_found(kind: str, dtype: str, tiny: TinyModels) -> None:
    model, served = loaded(tiny(kind), dtype)

    def make_wrong(pool: DevicePool) -> Changed:
        inner = served.make_pass(pool)
        assert isinstance(inner, PackedPass)
        return Changed(inner, positions=True)

    with pytest.raises(UnsupportedModel, match="other logits"):
        require_own_logits(model, served.groups, make_wrong)


def test_the_model_is_left_whole(tiny: TinyModels) -> None:
    model, _ = loaded(tiny("llama"), "float32")
    assert len(model.module.get_submodule("model.layers")) == 4
