"""Choice of compiling the code between attention calls, measured once per machine and remembered.

Compiling takes from seconds to minutes, and recorded steps already spare the launches that it would; so a
step is timed both ways when a model of some shape first runs on a device, and what is gained is kept. What
the compiler makes is kept by torch.
"""

import logging
from collections.abc import Callable
from functools import partial
from hashlib import blake2b
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch
from torch import Tensor

from kvchat.engine.forward.layerwise_pass import Compile, LayerwisePass
from kvchat.engine.forward.self_check import logits_tolerance
from kvchat.engine.forward.self_check_cache import SelfCheckCache

FILE_NAME = "compiled-layers"
LEAST_GAIN = 1.03
"""A compiled step must be so many times as fast: less is within what timings err by."""
PACKAGES = ("torch", "triton", "kvchat")
_GAIN = "gain"

TimeStep = Callable[[], tuple[float, Tensor]]
log = logging.getLogger(__name__)


def choose(
    forward: LayerwisePass,
    time_step: TimeStep,
    cache_dir: Path,
    report: Callable[[str], None] = lambda _: None,
    compile: Compile = torch.compile,
) -> bool:
    """Make the pass compute whichever way is faster, measured now or before; return whether it is compiled.

    Args:
        time_step: times a step of the pass as it computes now; returns its seconds and its logits.
    """
    kept = SelfCheckCache(cache_dir / FILE_NAME, fingerprint_of(forward, forward.device))
    gain = kept.find(_GAIN)
    if not isinstance(gain, float):
        report("timing a step, compiled and not (a minute or more, the first time only)")
        gain = measured_gain(forward, time_step, compile)
        kept.keep(_GAIN, gain)
        report(f"a step is {gain:.2f} times as fast compiled" if gain else "compiling failed")
    is_compiled = gain >= LEAST_GAIN
    # A step that is timed would not fail as later ones may, so the next start would choose the same again.
    forward.use(compile if is_compiled else None, partial(kept.keep, _GAIN, 0.0))
    return is_compiled


def measured_gain(forward: LayerwisePass, time_step: TimeStep, compile: Compile) -> float:
    """Return how many times as fast a step is compiled; 0.0: it fails, or computes something else."""
    forward.use(None)
    try:
        plain_s, wanted = time_step()
        forward.use(compile)
        compiled_s, found = time_step()
        distance = float((found - wanted).norm() / wanted.norm().clamp_min(1e-6))
        if not distance <= logits_tolerance(forward.dtype):
            raise RuntimeError(f"compiled layers give other logits ({distance:.2g} of their size away)")
    except torch.AcceleratorError:
        raise
    except Exception as error:  # compilers raise whatever they like
        log.warning("layers are not compiled, which may be slower: %s", f"{error}"[:300])
        return 0.0
    return plain_s / compiled_s


def fingerprint_of(forward: LayerwisePass, device: torch.device) -> str:
    """Return a name of what a choice depends on: what layers compute, their sizes, device and versions."""
    versions = []
    for package in PACKAGES:
        try:
            versions.append(version(package))
        except PackageNotFoundError:
            versions.append("")
    device_name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    layers = forward.fusion.layers
    widths = [layer.linears[0].num_inputs for layer in layers]
    parts = ([repr(layer.kind) for layer in layers], widths, str(forward.dtype), versions, device_name)
    return blake2b(repr(parts).encode(), digest_size=16).hexdigest()
