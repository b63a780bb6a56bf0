"""What an engine does on a GPU before it answers: try the kernels, and record the steps that decode."""

from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from kvchat.engine.api.ids import GroupId
from kvchat.engine.cache.spec import (
    ChunkedSpec,
    Fp8LatentSpec,
    FullSpec,
    Group,
    LatentSpec,
    RecentSpec,
    SealedSpec,
    SlidingSpec,
)
from kvchat.engine.compiled import choose
from kvchat.engine.cuda_graphs import CudaGraphs
from kvchat.engine.decode_steps import DecodeSteps, Limits
from kvchat.engine.forward import PackedPass
from kvchat.engine.kernels import sealed_attention
from kvchat.engine.kernels.checks import debugs
from kvchat.engine.kernels.device import is_supported, takes_triton
from kvchat.engine.kernels.model_trials import Latents, Sizes, trials_of
from kvchat.engine.kernels.trials import FUSED_TRIALS, LATENT_TRIALS, TRIALS, try_kernels
from kvchat.engine.layer_pass import LayerPass
from kvchat.engine.memory.device_pool import DevicePool
from kvchat.engine.models.load import DTYPES
from kvchat.engine.runner import ForwardPass

Report = Callable[[str], None]


def try_gpu(device: torch.device, dtype: str, report: Report) -> None:
    """Refuse the kernels that do not compute what they should on this GPU; nothing on other devices.

    Args:
        dtype: name of the one in which the model computes.
    """
    if _has_kernels(device):
        report("trying the GPU's kernels (longer the first time)")
        try_kernels(device, DTYPES.get(dtype, torch.float32), TRIALS | LATENT_TRIALS | FUSED_TRIALS)


def try_sizes(device: torch.device, dtype: str, sizes: Sequence[Sizes | Latents], report: Report) -> None:
    """Do the same in a model's own sizes.

    Args:
        sizes: of its layers, each once.
    """
    if sizes and _has_kernels(device):
        report("trying the GPU's kernels in the model's sizes (longer the first time)")
        try_kernels(device, DTYPES.get(dtype, torch.float32), trials_of(sizes))


def _has_kernels(device: torch.device) -> bool:
    """Whether kernels are made for the device."""
    return device.type == "cuda" and is_supported(
        torch.cuda.current_device() if device.index is None else device.index
    )


def short_steps(
    forward: ForwardPass,
    groups: Sequence[Group],
    pool: DevicePool,
    context_len: int,
    report: Report,
    cache_dir: Path | None = None,
) -> DecodeSteps | None:
    """Return recorded steps where a GPU can repeat this model's; None: nothing is recorded.

    Args:
        cache_dir: where it is remembered whether layers are compiled; None: they are not.
    """
    if forward.device.type != "cuda" or debugs() or not can_record(forward, groups):
        return None
    steps = DecodeSteps(forward, groups, limits_of(groups, pool, context_len), CudaGraphs(forward.device))
    if isinstance(forward, LayerPass) and cache_dir is not None:
        report("timing a step, compiled and not (a minute or more, the first time only)")
        report(choose(forward, forward.walk, steps.time_smallest, cache_dir).in_words())
    seconds = steps.prepare(report)
    report(f"decode steps are recorded ({seconds:.0f} s)")
    return steps


def can_record(forward: ForwardPass, groups: Sequence[Group]) -> bool:
    """Whether a step of the model follows from tensors alone. Pure."""
    kinds = FullSpec, SlidingSpec, ChunkedSpec, LatentSpec, Fp8LatentSpec, RecentSpec, SealedSpec
    return (
        isinstance(forward, (PackedPass, LayerPass))
        and forward.follows_from_tensors
        and all(type(group.spec) in kinds and not group.borrowers for group in groups)
    )


def limits_of(groups: Sequence[Group], pool: DevicePool, context_len: int) -> Limits:
    """Return what decode steps must know of a pool."""
    num_slots: dict[GroupId, int] = {}
    for layer in pool.layers.values():
        num_slots[layer.group] = layer.keys.shape[0] * pool.block_size
    reads_codes = all(
        takes_triton(layer.keys, sealed_attention.OPERATION)
        for layer in pool.layers.values()
        if layer.sealed is not None
    )
    return Limits(
        block_size=pool.block_size, context_len=context_len, num_slots=num_slots, reads_codes=reads_codes
    )
