"""Whether decode steps are recorded on a GPU, and if not, why, is known and told by `doctor`."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from kvchat.engine.api.config import EngineConfig
from kvchat.engine.formats.full.transformers_cache import TransformersCache
from kvchat.engine.formats.spec import Group
from kvchat.engine.forward.decode_graphs import DecodeGraphRunner, Limits, compute_anew
from kvchat.engine.forward.model_pass import SequencePass
from kvchat.engine.forward.runner import ForwardPass
from kvchat.engine.memory.device_pool import DevicePool
from kvchat.engine.models.weights_setting import WeightSource
from kvchat.engine.startup.gpu import unrecorded, why_not
from kvchat.engine.startup.weights import load_candidate
from tests.engine.conftest import TinyModels

pytestmark = pytest.mark.cpu

CPU, GPU = torch.device("cpu"), torch.device("cuda")
BLOCK_SIZE = 16


def model(
    model_dir: Path, cache_format: str = "exact", *, one_by_one: bool = False
) -> tuple[ForwardPass, tuple[Group, ...]]:
    config = EngineConfig(device="cpu", block_size=BLOCK_SIZE, cache_format=cache_format)
    candidate = load_candidate(WeightSource(model_dir=model_dir), config, CPU)
    groups = candidate.served.groups
    pool = DevicePool(groups, {group.id: 4 for group in groups}, BLOCK_SIZE, CPU)
    if one_by_one:
        return SequencePass(candidate.loaded.module, TransformersCache(pool.layers)), groups
    return candidate.served.make_pass(pool), groups


def on_gpu(forward: ForwardPass) -> ForwardPass:
    forward.device = GPU  # type: ignore[misc]
    return forward


def test_why_a_step_is_not_recorded_is_known(tiny: TinyModels) -> None:
    forward, groups = model(tiny("llama"))
    assert why_not(forward, groups) is None
    borrowing = (replace(groups[0], borrowers=((9, 0),)),)
    assert "what others have stored" in str(why_not(forward, borrowing))
    assert "one sequence after the other" in str(why_not(*model(tiny("llama"), one_by_one=True)))


@pytest.mark.parametrize("cache_format", ["window", "snapkv:48", "shadow:64:forced"])
def test_formats_that_choose_what_a_step_sees_are_not_recorded(cache_format: str, tiny: TinyModels) -> None:
    assert "chooses what a step sees" in str(why_not(*model(tiny("llama"), cache_format)))


def test_it_is_told_of_gpus_alone(tiny: TinyModels, monkeypatch: pytest.MonkeyPatch) -> None:
    forward, groups = model(tiny("llama"))
    assert unrecorded(forward, (replace(groups[0], borrowers=((9, 0),)),), None) is None
    gpu = on_gpu(forward)
    assert "others have stored" in str(unrecorded(gpu, (replace(groups[0], borrowers=((9, 0),)),), None))
    monkeypatch.setattr("kvchat.engine.startup.gpu.debugs", lambda: True)
    assert "KVCHAT_DEBUG_KERNELS" in str(unrecorded(gpu, groups, None))


def refuses(error: Exception) -> Callable[[Any], Any]:
    """Return what records nothing."""

    def record(step: Any) -> Any:
        raise error

    return record


@pytest.mark.parametrize(
    ("record", "words"),
    [
        (compute_anew, None),
        (refuses(RuntimeError("a step waits for the device:\n experts")), "waits for the device: experts"),
        (refuses(torch.OutOfMemoryError("1 GiB")), "no memory is left"),
    ],
)
def test_a_step_that_could_not_be_recorded_says_why(record: Any, words: str | None, tiny: TinyModels) -> None:
    forward, groups = model(tiny("llama"))
    slots = {group.id: 4 * BLOCK_SIZE for group in groups}
    limits = Limits(block_size=BLOCK_SIZE, context_len=32, num_slots=slots)
    steps = DecodeGraphRunner(forward, groups, limits, record, (1, 2))
    steps.prepare()
    told = unrecorded(on_gpu(forward), groups, steps)
    assert told is None if words is None else words in str(told)
