"""Choice of compiling the code between attention calls, measured once per machine and remembered.

Compiling takes from seconds to minutes, and recorded steps already spare the launches that it would; so a
step is timed both ways when a model of some shape first runs on a device, and the choice is kept with what
both cost. What the compiler makes is kept by torch.
"""

import json
import logging
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from hashlib import blake2b
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from time import perf_counter

import torch
from torch import Tensor

from kvchat.engine.forward.layerwise_pass import Compile, LayerWalk, LayerwisePass
from kvchat.platform.cached_results import write_whole

FILE_NAME = "compiled-layers.json"
LEAST_GAIN = 1.03
"""A compiled step must be so many times as fast: less is within what timings err by."""
TOLERANCE = {torch.float32: 1e-3}
COARSE_TOLERANCE = 0.1
PROBLEM_LEN = 200
PACKAGES = ("torch", "triton", "kvchat")

TimeStep = Callable[[], tuple[float, Tensor]]
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class CompileChoice:
    """What was measured for one model's shape on one device.

    Args:
        model, device: in words.
        plain_s, compiled_s: one step; compiled 0: it failed, or computed something else.
        compile_s: what compiling and timing took.
        problem: why it failed after it had been chosen; empty: it did not.
    """

    model: str
    device: str
    plain_s: float
    compiled_s: float
    compile_s: float
    problem: str = ""

    @property
    def gain(self) -> float:
        return self.plain_s / self.compiled_s if self.compiled_s else 0.0

    @property
    def compiles(self) -> bool:
        return self.gain >= LEAST_GAIN

    def in_words(self) -> str:
        if self.problem:
            return (
                f"{self.model} on {self.device}: not compiled any more, since it failed ({self.problem}); "
                f"remove {FILE_NAME} from the cache directory to have it tried again"
            )
        verdict = "compiled" if self.compiles else "not compiled"
        found = f"{self.gain:.2f} times as fast compiled" if self.compiled_s else "compiling failed"
        return f"{self.model} on {self.device}: {verdict} ({found}; {self.compile_s:.0f} s to find out, once)"


def known_choices(cache_dir: Path) -> dict[str, CompileChoice]:
    """Return what has been measured, by fingerprint; nothing where the file cannot be read."""
    try:
        listed = json.loads((cache_dir / FILE_NAME).read_text())
        choices = {key: CompileChoice(**fields) for key, fields in listed.items()}
        return {key: choice for key, choice in choices.items() if isinstance(choice.gain, float)}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


def choose(
    forward: LayerwisePass,
    walk: LayerWalk,
    time_step: TimeStep,
    cache_dir: Path,
    compile: Compile | None = None,
) -> CompileChoice:
    """Make the pass compute whichever way is faster, measured now or before.

    Args:
        time_step: times a step of the pass as it computes now; returns its seconds and its logits.
        compile: None: torch's own.
    """
    compile = compile or torch.compile
    key, choices = fingerprint_of(walk, forward.device), known_choices(cache_dir)
    choice = choices.get(key)
    if choice is None:
        choice = _measured(forward, walk, time_step, compile)
        choices[key] = choice
        _keep(choices, cache_dir)
    forward.use(
        compile if choice.compiles else None, falls_back=True, told=partial(_give_up, key, choice, cache_dir)
    )
    return choice


def _give_up(key: str, choice: CompileChoice, cache_dir: Path, problem: str) -> None:
    """Remember that what was chosen has failed: a step that is timed would not, so the next start would
    choose the same again.
    """
    failed = replace(choice, compiled_s=0.0, problem=" ".join(problem.split())[:PROBLEM_LEN])
    _keep(known_choices(cache_dir) | {key: failed}, cache_dir)


def _keep(choices: dict[str, CompileChoice], cache_dir: Path) -> None:
    """Write what has been measured, whole or not at all; not being able to costs the next start time."""
    listed = {key: asdict(choice) for key, choice in choices.items()}
    write_whole(cache_dir / FILE_NAME, json.dumps(listed, indent=1).encode())


def _measured(
    forward: LayerwisePass, walk: LayerWalk, time_step: TimeStep, compile: Compile
) -> CompileChoice:
    forward.use(None)
    start_s, plain_s, compiled_s = perf_counter(), 0.0, 0.0
    try:
        plain_s, wanted = time_step()
        start_s = perf_counter()
        forward.use(compile)
        compiled_s, found = time_step()
        _require_near(found, wanted, walk.dtype)
    except torch.AcceleratorError:
        raise
    except Exception as error:  # compilers raise whatever they like
        log.warning("layers are not compiled, which may be slower: %s", f"{error}"[:300])
        compiled_s = 0.0
    return CompileChoice(
        model=f"{len(walk.layers)} layers of {walk.layers[0].linears[0].num_inputs}",
        device=_device_name(forward.device),
        plain_s=plain_s,
        compiled_s=compiled_s,
        compile_s=perf_counter() - start_s,
    )


def _require_near(found: Tensor, wanted: Tensor, dtype: torch.dtype) -> None:
    distance = float((found - wanted).norm() / wanted.norm().clamp_min(1e-6))
    if not distance <= TOLERANCE.get(dtype, COARSE_TOLERANCE):
        raise RuntimeError(f"compiled layers give other logits ({distance:.2g} of their size away)")


def fingerprint_of(walk: LayerWalk, device: torch.device) -> str:
    """Return a name of what a choice depends on: what layers compute, their sizes, device and versions."""
    versions = []
    for package in PACKAGES:
        try:
            versions.append(version(package))
        except PackageNotFoundError:
            versions.append("")
    widths = [layer.linears[0].num_inputs for layer in walk.layers]
    parts = ([repr(layer.kind) for layer in walk.layers], widths, str(walk.dtype), versions)
    return blake2b(repr((*parts, _device_name(device))).encode(), digest_size=16).hexdigest()


def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
