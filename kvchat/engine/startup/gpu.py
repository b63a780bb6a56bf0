"""GPU start-up: kernel checks and recording of decode graphs."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from kvchat.engine.api.ids import GroupId
from kvchat.engine.formats.pool_sizing import Lengths
from kvchat.engine.formats.spec import Group, Selection
from kvchat.engine.forward.compile_choice import choose
from kvchat.engine.forward.decode_graphs import DecodeGraphRunner, Limits, compute_anew
from kvchat.engine.forward.layerwise_pass import LayerwisePass
from kvchat.engine.forward.model_pass import PackedPass
from kvchat.engine.forward.runner import ForwardPass
from kvchat.engine.kernels import quantized_attention
from kvchat.engine.kernels.bounds_checks import debugs
from kvchat.engine.kernels.kernel_checks import KernelCheck, try_kernels
from kvchat.engine.kernels.triton_support import is_supported, takes_triton
from kvchat.engine.memory.device_pool import DevicePool
from kvchat.engine.models.load import DTYPES

NUM_ROUNDS = 2
"""Before a step is recorded: kernels are compiled, and libraries allocate what they keep."""
IN_SIZES = " in the model's sizes"

Report = Callable[[str], None]


def try_gpu(
    device: torch.device, dtype: str, trials: Mapping[str, KernelCheck], report: Report, where: str = ""
) -> None:
    """Refuse the kernels that do not compute what they should on this GPU; nothing on other devices.

    Args:
        dtype: name of the one in which the model computes.
        where: in which sizes, in words.
    """
    if not trials or device.type != "cuda":
        return
    if is_supported(torch.cuda.current_device() if device.index is None else device.index):
        report(f"trying the GPU's kernels{where} (longer the first time)")
        try_kernels(device, DTYPES.get(dtype, torch.float32), trials)


def recorded_bytes(
    make_pass: Callable[[DevicePool], ForwardPass],
    groups: Sequence[Group],
    lengths: Lengths,
    device: torch.device,
) -> int:
    """Return what recorded steps will hold beside weights and pools; 0 where none is recorded.

    Effect:
        Computes two steps on a pool of its own; whoever serves the model makes a forward pass again.
    """
    if device.type != "cuda" or debugs():
        return 0
    pool = DevicePool(groups, {group.id: 1 for group in groups}, lengths.block_size, device)
    forward = make_pass(pool)
    if why_not(forward, groups) is not None:
        return 0
    limits = limits_of(groups, pool, lengths.context_len)
    return DecodeGraphRunner(forward, groups, limits, compute_anew).recorded_bytes()


def record(device: torch.device, pool: Any, step: Callable[[], None]) -> Callable[[], None]:
    """Return what repeats a step.

    Args:
        pool: where it computes, which may be the same for all steps.

    Raises:
        RuntimeError: the step waits for the device, which cannot be recorded.
        torch.AcceleratorError: the device failed while it computed; nothing on it can be trusted.
    """
    stream = torch.cuda.Stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        for _ in range(NUM_ROUNDS):
            step()
    torch.cuda.current_stream(device).wait_stream(stream)
    torch.cuda.synchronize(device)
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
            step()
    except torch.AcceleratorError as error:
        # The same class tells of a wait and of a broken device; only the latter answers nothing any more.
        torch.cuda.synchronize(device)
        raise RuntimeError(f"a step waits for the device: {error}") from error
    return graph.replay


def short_steps(
    forward: ForwardPass,
    groups: Sequence[Group],
    limits: Limits,
    reserve_bytes: int,
    cache_dir: Path | None,
    report: Report,
) -> DecodeGraphRunner | None:
    """Return recorded steps where a GPU can repeat this model's; None: nothing is recorded.

    Args:
        reserve_bytes: what the largest step allocates, which recorded ones must leave.
        cache_dir: where it is remembered whether layers are compiled; None: they are not.
    """
    device = forward.device
    if device.type != "cuda" or debugs() or why_not(forward, groups) is not None:
        return None
    steps = DecodeGraphRunner(
        forward, groups, limits, partial(record, device, torch.cuda.graph_pool_handle())
    )
    if isinstance(forward, LayerwisePass) and cache_dir is not None:
        choose(forward, steps.time_smallest, cache_dir, report)
    seconds = steps.prepare(report, lambda: free_bytes(device) >= reserve_bytes)
    report(f"decode steps are recorded ({seconds:.0f} s)")
    return steps


def free_bytes(device: torch.device) -> int:
    """Return what a GPU has left, with what torch has kept for itself and does not use."""
    torch.cuda.empty_cache()
    return torch.cuda.mem_get_info(device)[0]


def why_not(forward: ForwardPass, groups: Sequence[Group]) -> str | None:
    """Return why a step of the model does not follow from tensors alone; None: it does. Pure."""
    if not isinstance(forward, (PackedPass, LayerwisePass)):
        return "the model computes one sequence after the other"
    if not forward.follows_from_tensors:
        return "layers of the model ask how long their past is"
    if any(group.borrowers for group in groups):
        return "layers of the model attend to what others have stored"
    if any(group.spec.selection is not Selection.ALL for group in groups):
        return "the cache format chooses what a step sees"
    return None


def unrecorded(forward: ForwardPass, groups: Sequence[Group], steps: DecodeGraphRunner | None) -> str | None:
    """Return why no decode step is recorded on a GPU; None: some are, or there is no GPU. Pure.

    Args:
        steps: what `short_steps` returned.
    """
    if forward.device.type != "cuda":
        return None
    if steps is not None:
        return steps.problem
    return "KVCHAT_DEBUG_KERNELS looks at every launch" if debugs() else why_not(forward, groups)


def limits_of(groups: Sequence[Group], pool: DevicePool, context_len: int) -> Limits:
    """Return what decode steps must know of a pool."""
    num_slots: dict[GroupId, int] = {}
    for layer in pool.layers.values():
        num_slots[layer.group] = layer.keys.shape[0] * pool.block_size
    reads_codes = all(
        takes_triton(layer.keys, quantized_attention.OPERATION)
        for layer in pool.layers.values()
        if layer.derived is not None
    )
    return Limits(
        block_size=pool.block_size, context_len=context_len, num_slots=num_slots, reads_codes=reads_codes
    )
