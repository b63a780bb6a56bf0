"""On a GPU: kernels, recorded steps and moving blocks compute what a processor does. Left out without one."""

from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch

from benchmarks.gpu.checks import EVERY_TRIAL
from kvchat.engine.api.config import EngineConfig
from kvchat.engine.api.ids import BlockId
from kvchat.engine.api.sampling_params import SamplingParams
from kvchat.engine.cache.block_operations import Promote
from kvchat.engine.engine import Engine
from kvchat.engine.kernels.health import HEALTH, Health
from kvchat.engine.kernels.kernel_checks import try_kernels
from kvchat.engine.memory.cuda_streams import CudaStreams
from kvchat.engine.memory.device_pool import DevicePool
from kvchat.engine.memory.host_copies import AsyncTransport, Transport
from kvchat.engine.memory.host_pool import HostPool
from kvchat.engine.memory.pinned import PinnedSlabs
from kvchat.engine.memory.rates import Rates
from tests.engine.formats.shadow.told import tell
from tests.engine.memory import test_host_copies as staged_traces
from tests.engine.recurrent_models import save_recurrent
from tests.engine.tiny_models import open_recorded, token_ids

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU that torch can use"),
]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_every_kernel_passes_its_trial(dtype: torch.dtype) -> None:
    health = Health()
    try_kernels(torch.device("cuda"), dtype, EVERY_TRIAL, health)
    assert health.problems == {}
    assert HEALTH.problems == {}


@pytest.mark.parametrize("kind", ["llama", "qwen3", "gpt2"])
def test_answers_are_those_of_a_processor(kind: str, tiny: Any) -> None:
    """Alone and together, with prompts of several chunks and steps that are recorded."""
    prompts = [token_ids(length, seed=length) for length in (5, 64, 150)]
    sampling = SamplingParams(max_tokens=20)
    found: list[list[list[int]]] = []
    for device in ("cpu", "cuda"):
        engine = Engine.load(
            str(tiny(kind)), EngineConfig(device=device, max_batch_tokens=64, speculate="off", block_size=16)
        )
        together = [list(result.token_ids) for result in engine.generate(prompts, sampling)]
        alone = [list(engine.generate([prompt], sampling)[0].token_ids) for prompt in prompts]
        assert alone == together
        if device == "cuda":
            assert engine._runner._short is not None
            assert engine._runner._short._steps  # type: ignore[attr-defined]
        engine.close()
        found.append(together)
    assert found[0] == found[1]


@pytest.mark.parametrize("name", ["Qwen3_5", "KimiLinear", "Mamba2", "Mamba", "Lfm2"])
def test_answers_of_recurrent_layers_are_those_of_a_processor(name: str, tmp_path: Path) -> None:
    model_dir = save_recurrent(name, tmp_path)
    prompts = [token_ids(length, seed=length) for length in (1, 64, 150)]
    found = []
    for device in ("cpu", "cuda"):
        engine, recorder = open_recorded(model_dir, device=device, max_batch_tokens=64)
        assert {pool.spec.piece for pool in recorder.device_pool.states.values()} == {1}, "kernels compute"
        results = engine.generate(prompts, SamplingParams(max_tokens=20))
        found.append([list(result.token_ids) for result in results])
        engine.close()
    assert found[0] == found[1]
    assert HEALTH.problems == {}


def test_a_conversation_that_is_looked_at_through_a_shadow_is_a_processors(tiny: Any, tmp_path: Path) -> None:
    """In turns, forks and taken up again: blocks in pinned host memory, values loaded beside the keys."""
    model_dir = tiny("llama", num_hidden_layers=2)
    ours, theirs = (tell(model_dir, tmp_path / device, device) for device in ("cpu", "cuda"))
    assert HEALTH.problems == {}
    assert (ours.is_remote, theirs.is_remote) == (False, True)
    assert theirs.tokens == ours.tokens
    assert theirs.chosen == ours.chosen
    torch.testing.assert_close(theirs.logits, ours.logits, atol=1e-2, rtol=1e-2)


@pytest.mark.parametrize("seed", range(6))
def test_blocks_that_move_beside_computation_hold_what_they_should(seed: int) -> None:
    random, device = Random(seed), torch.device("cuda")
    pool, direct_pool = on_gpu(staged_traces.make_pool(), device), staged_traces.make_pool()
    sizes = {group: pool.block_bytes(group) for group in staged_traces.GROUPS}
    host = HostPool(dict.fromkeys(sizes, staged_traces.NUM_PLACES), sizes, PinnedSlabs)
    direct_host = staged_traces.make_host(direct_pool)
    for group in sizes:
        for place in range(staged_traces.NUM_PLACES):
            host.view(group, BlockId(place))[:] = bytes(sizes[group])
    direct = Transport(direct_pool, direct_host, Rates())
    staged = AsyncTransport(pool, host, Rates(), CudaStreams(device), most_bytes=6 * max(sizes.values()))
    for number in range(1, 60):
        group, block = random.choice(staged_traces.GROUPS), random.randrange(staged_traces.NUM_BLOCKS)
        action = random.randrange(3)
        if action == 0:
            staged_traces.fill(pool, group, block, number)
            staged_traces.fill(direct_pool, group, block, number)
        elif action == 1:
            moves = staged_traces.random_moves(random, group)
            staged.execute(moves)
            direct.execute(moves)
        else:
            move = Promote(group, BlockId(random.randrange(staged_traces.NUM_PLACES)), BlockId(block))
            staged.promote(move)
            direct.promote(move)
    staged.settle()
    torch.cuda.synchronize()
    assert staged_traces.contents(pool, host) == staged_traces.contents(direct_pool, direct_host)


def on_gpu(pool: DevicePool, device: torch.device) -> DevicePool:
    """Return a pool like `pool` on the GPU, zeroed."""
    blocks = dict.fromkeys(staged_traces.GROUPS, staged_traces.NUM_BLOCKS)
    made = DevicePool(list(pool._groups.values()), blocks, pool.block_size, device)
    for layer in made.layers.values():
        layer.keys.zero_()
        layer.values.zero_()
    return made
