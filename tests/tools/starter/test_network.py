"""The training network computes what Qwen3ForCausalLM computes, and starts with a working copy circuit."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import Qwen3Config, Qwen3ForCausalLM

from tools.starter.attention import full_attention, window_attention
from tools.starter.export import model_config
from tools.starter.initialisation import initial_parameters
from tools.starter.network import Network, Shape

pytestmark = [pytest.mark.cpu, pytest.mark.usefixtures("one_thread")]


def _noisy_parameters(shape: Shape) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(1)
    parameters = initial_parameters(shape, seed=0)
    return {name: p + 0.02 * torch.randn(p.shape, generator=generator) for name, p in parameters.items()}


def test_logits_agree_with_transformers() -> None:
    shape = Shape()
    parameters = _noisy_parameters(shape)
    model = Qwen3ForCausalLM(Qwen3Config(**model_config(shape))).eval()
    missing, unexpected = model.load_state_dict(parameters, strict=False)
    assert missing in ([], ["lm_head.weight"])
    assert unexpected == []
    ids = torch.randint(5, shape.vocabulary, (2, 384), generator=torch.Generator().manual_seed(2))
    network = Network(shape, parameters)
    with torch.inference_mode():
        expected = model(ids).logits
        given = network.logits(network.hidden(ids))
    # bfloat16 products against float32 ones differ by 0.04; a window of 127 or 129 tokens by 0.09 and more
    assert (given - expected).norm() / expected.norm() < 0.06


def _reference(q: Tensor, k: Tensor, v: Tensor, window: int) -> Tensor:
    group = q.shape[2] // k.shape[2]
    position = torch.arange(q.shape[1])
    distance = position[:, None] - position[None]
    heads = (x.transpose(1, 2) for x in (q, k.repeat_interleave(group, 2), v.repeat_interleave(group, 2)))
    mask = (distance >= 0) & (distance < window)
    return F.scaled_dot_product_attention(*heads, attn_mask=mask).transpose(1, 2)


@pytest.mark.parametrize(("length", "window"), [(256, 256), (1024, 1024), (512, 128)])
def test_blocked_attention_and_its_gradient_agree_with_the_definition(length: int, window: int) -> None:
    generator = torch.Generator().manual_seed(3)
    inputs = [torch.randn(2, length, heads, 64, generator=generator).bfloat16() for heads in (4, 2, 2)]
    grad = torch.randn(2, length, 4, 64, generator=generator)
    fast = [x.clone().requires_grad_() for x in inputs]
    slow = [x.float().requires_grad_() for x in inputs]
    out = full_attention(*fast) if window == length else window_attention(*fast, window)
    expected = _reference(*slow, window)
    out.backward(grad.bfloat16())
    expected.backward(grad)
    pairs = [(out, expected), *((a.grad, b.grad) for a, b in zip(fast, slow, strict=True))]
    for given, wanted in pairs:
        assert given is not None
        assert wanted is not None
        assert (given.float() - wanted).norm() / wanted.norm() < 0.01
