"""A recorded step, and what draws its tokens, wait for nothing: they run where tensors have no numbers.

On the device "meta" a tensor has a shape and nothing else, so whatever the host would have to read raises: an
item, a shape that follows from a mask, a comparison. What would be copied to the device in the middle is
watched for.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from kvchat.engine.api.config import EngineConfig
from kvchat.engine.api.sampling_params import SamplingParams
from kvchat.engine.forward.decode_graphs import Limits, Size, _Step
from kvchat.engine.forward.runner import ForwardPass
from kvchat.engine.kernels.store_kv import reference, torch_fallback
from kvchat.engine.memory.device_pool import DevicePool
from kvchat.engine.models.weights_setting import WeightSource
from kvchat.engine.sampling.sampler import draw
from kvchat.engine.startup.weights import load_candidate
from tests.engine.conftest import TinyModels
from tests.engine.latent_models import model_of
from tests.engine.tiny_models import KINDS, save_model

pytestmark = pytest.mark.cpu

BLOCK_SIZE, NUM_BLOCKS, NUM_ROWS = 16, 40, 4
CPU, META = torch.device("cpu"), torch.device("meta")


class NoCopies(TorchDispatchMode):
    """Refuses operations that bring numbers of the host to the device or back."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        tensors = [each for each in (*args, result) if isinstance(each, Tensor)]
        on_host = [each for each in tensors if each.device.type == "cpu" and each.dim()]
        if on_host and any(each.is_meta for each in tensors):
            raise AssertionError(f"{func} copies between host and device")
        return result


def moved_as_it_is(module: torch.nn.Module) -> None:
    """Bring a model's weights to the device, also where others hold them."""
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        module.to(META)
    finally:
        torch.__future__.set_swap_module_params_on_conversion(False)


def make_step(model_dir: Path, cache_format: str, dtype: str = "auto") -> Callable[[], Tensor]:
    """Return a step on a device without numbers, which returns its logits."""
    config = EngineConfig(device="cpu", block_size=BLOCK_SIZE, cache_format=cache_format, dtype=dtype)
    candidate = load_candidate(WeightSource(model_dir=model_dir), config, CPU)
    moved_as_it_is(candidate.loaded.module)
    groups = candidate.served.groups
    pool = DevicePool(groups, {group.id: NUM_BLOCKS for group in groups}, BLOCK_SIZE, META)
    num_slots = {group.id: NUM_BLOCKS * BLOCK_SIZE for group in groups}
    limits = Limits(block_size=BLOCK_SIZE, context_len=128, num_slots=num_slots)
    forward: ForwardPass = candidate.served.make_pass(pool)
    step = _Step(forward, groups, limits, Size(NUM_ROWS, 128))
    step.fill((), {})

    def run() -> Tensor:
        with torch.inference_mode(), NoCopies():
            step._compute()
        assert step._logits is not None
        return step._logits

    return run


def place_of(logits: Tensor) -> tuple[int, torch.device]:
    """Return how many rows of logits there are, and where."""
    return len(logits), logits.device


@pytest.mark.parametrize(
    ("kind", "cache_format"),
    [*((kind, "exact") for kind in KINDS), ("llama", "int8"), ("llama", "k=fp8,v=int4; layers 0-1=exact")],
)
def test_a_step_waits_for_nothing(kind: str, cache_format: str, tiny: TinyModels) -> None:
    assert place_of(make_step(tiny(kind), cache_format)()) == (NUM_ROWS, META)


@pytest.mark.parametrize("cache_format", ["exact", "fp8"])
def test_a_step_over_latents_waits_for_nothing(cache_format: str, tmp_path: Path) -> None:
    """But where experts are looked up on the host, which `first_k_dense_replace` leaves out."""
    step = make_step(model_of("V2", tmp_path, first_k_dense_replace=3), cache_format)
    assert place_of(step()) == (NUM_ROWS, META)


def test_a_step_of_experts_in_bfloat16_waits_for_nothing(tmp_path: Path) -> None:
    """They are one grouped product, sorted by experts on the device; in float32 torch has none there."""
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16}
    experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
    sizes = {"vocab_size": 512, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
    ids = {"bos_token_id": None, "eos_token_id": None, "max_position_embeddings": 256}
    model_dir = save_model(transformers.Qwen3MoeConfig(**heads | experts | sizes | ids), tmp_path)
    assert place_of(make_step(model_dir, "exact", "bfloat16")()) == (NUM_ROWS, META)
    with pytest.raises(RuntimeError, match="BF16"):
        make_step(model_dir, "exact", "float32")()


def test_a_step_that_waits_is_noticed(tmp_path: Path) -> None:
    """Experts that are looked up, and the definition of storing, which asks whether all rows have a slot."""
    with pytest.raises((RuntimeError, NotImplementedError)):
        make_step(model_of("V2", tmp_path), "exact")()
    pools = [torch.zeros(NUM_BLOCKS, 2, BLOCK_SIZE, 4, device=META) for _ in range(2)]
    key = torch.zeros(4, 2, 4, device=META)
    slots = torch.zeros(4, dtype=torch.int32, device=META)
    torch_fallback.store_kv(key, key, pools[0], pools[1], slots)
    with pytest.raises((RuntimeError, NotImplementedError)):
        reference.store_kv(key, key, pools[0], pools[1], slots)
    with NoCopies(), pytest.raises(AssertionError, match="copies"):
        slots.copy_(torch.zeros(4, dtype=torch.int32))


def test_drawing_waits_for_nothing() -> None:
    params = [SamplingParams(temperature=0.7, top_k=5, top_p=0.9, min_p=0.1), SamplingParams(temperature=0.0)]
    tokens = draw(torch.zeros(2, 50, device=META), params, [0.3, 0.0])
    assert (tokens.shape, tokens.dtype, tokens.device) == ((2,), torch.int64, META)


@pytest.mark.parametrize("num_there", [0, 1, 3])
def test_rows_without_a_slot_are_stored_nowhere(num_there: int) -> None:
    generator = torch.Generator().manual_seed(num_there)
    key, value = (torch.randn(3, 2, size, generator=generator) for size in (4, 5))
    pools = [torch.randn(6, 2, 8, size, generator=generator) for size in (4, 5)]
    wanted = [pool.clone() for pool in pools]
    slots = torch.tensor([48, 50, 999], dtype=torch.int32)
    slots[3 - num_there :] = torch.tensor([47, 0, 11], dtype=torch.int32)[:num_there]
    reference.store_kv(key, value, wanted[0], wanted[1], slots)
    torch_fallback.store_kv(key, value, pools[0], pools[1], slots)
    assert all(torch.equal(*pair) for pair in zip(pools, wanted, strict=True))
