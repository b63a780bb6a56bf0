"""A check on a model's first layers sees one layer of every sort, and leaves the model as it was."""

import pytest
import torch
import transformers
from torch import nn

from kvchat.engine.models.probing.first_layers import first_layers, num_kinds_prefix
from tests.engine.tiny_models import make_config

pytestmark = pytest.mark.cpu


def model(kind: str = "llama", **changes: object) -> nn.Module:
    return transformers.AutoModelForCausalLM.from_config(make_config(kind, **changes))


def test_layers_that_are_all_alike_need_two() -> None:
    assert num_kinds_prefix(model(), {}) == 2


def test_layers_that_keep_something_else_count_as_another_sort() -> None:
    assert num_kinds_prefix(model(), {0: "full", 1: "full", 2: "sliding", 3: "full"}) == 3


def test_layers_with_other_settings_count_as_another_sort() -> None:
    module = model()
    module.model.layers[3].self_attn.use_rope = False
    assert num_kinds_prefix(module, {}) == 4


def test_only_the_first_layers_run_and_then_all_again() -> None:
    module = model()
    ids = torch.arange(5)[None]
    before = module(ids).logits
    with first_layers(module, 2):
        assert len(module.model.layers) == 2
        assert not torch.equal(module(ids).logits, before)
    with pytest.raises(KeyError), first_layers(module, 1):
        raise KeyError
    assert torch.equal(module(ids).logits, before)
