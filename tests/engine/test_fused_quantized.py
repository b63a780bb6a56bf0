"""Fused layers over quantised caches compute what the model's own pass does."""

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

from kvchat.engine.forward.fused_check import fuse
from kvchat.engine.forward.fused_pass import FusedPools
from kvchat.engine.forward.model_route import choose_route
from kvchat.engine.forward.runner import ForwardPass, InputBatch
from kvchat.engine.memory.device_pool import DevicePool
from kvchat.engine.models.load import load_model
from kvchat.engine.quality.replay import Replay, ReplaySize
from kvchat.engine.startup.weights import groups_in
from tests.engine.conftest import TinyModels
from tests.engine.tiny_models import token_ids

pytestmark = [pytest.mark.cpu, pytest.mark.usefixtures("native_kernels")]

FORMATS = ("fp8", "int8", "int4", "int2", "k=int8,v=int4; layers 1=exact", "int4; layers 0=int8")


class Both:
    """Computes every step twice from the same keys and values: by fused layers, and by the model's own pass,
    whose keys and values remain.
    """

    def __init__(self, own: ForwardPass, fused: ForwardPass, pool: DevicePool) -> None:
        self.device = own.device
        self._own = own
        self._fused = fused
        self._pool = pool
        self.found: list[Tensor] = []
        self.wanted: list[Tensor] = []

    def logits(self, row: InputBatch) -> Tensor:
        before = [part.clone() for part in parts_of(self._pool)]
        self.found.append(self._fused.logits(row).float())
        old = [layer.derived.keys.clone() for layer in self._pool.layers.values() if layer.derived]
        for part, kept in zip(parts_of(self._pool), before, strict=True):
            part.copy_(kept)
        self.wanted.append(self._own.logits(row).float())
        if len(row.token_ids) == 1:  # the exact blocks that became old are the same in both
            quantized = [layer.derived.keys for layer in self._pool.layers.values() if layer.derived]
            assert all(map(torch.equal, old, quantized))
        return self.wanted[-1]


def parts_of(pool: DevicePool) -> list[Tensor]:
    parts = []
    for layer in pool.layers.values():
        parts += [layer.keys, layer.values]
        parts += [layer.derived.keys, layer.derived.values] if layer.derived else []
    return parts


def computed(
    model_dir: Path, cache_format: str, pieces: Sequence[int], dtype: str = "float32", block_size: int = 16
) -> tuple[Tensor, Tensor]:
    """Return the logits behind every token of pieces of a text that follow a prompt: found, and wanted."""
    model = load_model(model_dir, dtype=dtype, device=torch.device("cpu"))
    served = choose_route(model)
    groups = groups_in(served, cache_format, block_size)
    made: list[Both] = []

    def make_pass(pool: DevicePool) -> ForwardPass:
        fusion = fuse(model, groups)
        own = served.make_pass(pool)
        made.append(Both(own, fusion.stand_before(own, pool), pool))
        return made[0]

    size = ReplaySize(max_len=192, chunk_len=64, back_len=1, block_size=block_size)
    replay = Replay(make_pass, groups, size, torch.device("cpu"))
    replay.begin()
    for part in parts_of(replay.pool):
        part.zero_()
    text = token_ids(190, seed=4)
    replay.compute(text[:61], 0)
    (both,) = made
    both.found.clear()
    both.wanted.clear()
    start = 61
    for length in pieces:
        replay.compute(text[start : start + length], start, length)
        start += length
    return torch.cat(both.found), torch.cat(both.wanted)


PIECES = (1,) * 40 + (5, 16, 3, 16, 1, 9)
"""Tokens of each step, past several blocks that become old: with one token, and within a draft."""


def check_near(found: Tensor, wanted: Tensor) -> None:
    assert not torch.equal(found, wanted), "another way of computing"
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5 * float(wanted.abs().max()))


@pytest.mark.parametrize("cache_format", FORMATS)
def test_steps_compute_what_the_model_itself_does(cache_format: str, tiny: TinyModels) -> None:
    """In float32: tokens and drafts behind a prompt."""
    check_near(*computed(tiny("llama"), cache_format, PIECES))


@pytest.mark.parametrize("cache_format", ["int8", "int4; layers 0=int8"])
def test_steps_of_16_bits_stay_near_what_the_model_itself_does(cache_format: str, tiny: TinyModels) -> None:
    found, wanted = computed(tiny("llama"), cache_format, PIECES, dtype="bfloat16")
    distance = (found - wanted).norm(dim=1) / wanted.norm(dim=1)
    assert float(distance.median()) < 0.05


def test_each_layer_reads_the_quantized_blocks_of_its_own_group(tiny: TinyModels) -> None:
    model = load_model(tiny("llama"), dtype="float32", device=torch.device("cpu"))
    groups = groups_in(choose_route(model), "int4; layers 0=int8", 16)
    pool = DevicePool(groups, {group.id: 2 for group in groups}, 16, torch.device("cpu"))
    layers = list(pool.layers.values())
    pools = FusedPools(layers)
    assert len(pools.old) == 2
    for layer, numbered in zip(layers, pools.numbered, strict=True):
        assert any(layer is one for one in pools.old[list(pools.old)[numbered.old]])


def test_a_step_that_fills_what_it_makes_old_is_computed_right(tiny: TinyModels) -> None:
    """With blocks of 4, steps of 5 tokens and more may store tokens of what becomes old in the same step."""
    check_near(*computed(tiny("llama"), "int8", (13, 1, 16, 5, 4, 1, 3, 8), block_size=4))
