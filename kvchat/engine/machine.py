"""What this machine computes with, for whoever wants to know before a model is loaded."""

import os
import platform
from dataclasses import dataclass
from pathlib import Path

import torch

from kvchat.engine.kernels.native.library import library, why_not
from kvchat.engine.memory.host_memory import available_bytes
from kvchat.engine.threads import usable_cores

_CPUINFO = Path("/proc/cpuinfo")
_WIDE = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_bf16", "asimd", "sve")
"""Features of processors that kernels ask for, as Linux names them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """A device that can hold a model. `name`: as `--device` takes it."""

    name: str
    description: str
    free_bytes: int
    total_bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Args:
    instructions: the widest that torch uses here, as it names them.
    features: further ones the processor has.
    kernels: what the native kernels use, or why there are none.
    num_cores: processors this process may use.
    """

    processor: str
    instructions: str
    features: tuple[str, ...]
    kernels: str
    num_cores: int
    devices: tuple[Device, ...]


def this_machine() -> Machine:
    """Look at processors, memory and accelerators."""
    processor, features = _processor()
    return Machine(
        processor=processor,
        instructions=torch.backends.cpu.get_cpu_capability(),
        features=features,
        kernels=_kernels(),
        num_cores=usable_cores(),
        devices=(*_accelerators(), Device(name="cpu", description=processor, **_memory())),
    )


def _accelerators() -> list[Device]:
    found = []
    for number in range(torch.cuda.device_count()):
        free, total = torch.cuda.mem_get_info(number)
        name = torch.cuda.get_device_name(number)
        found.append(Device(name=f"cuda:{number}", description=name, free_bytes=free, total_bytes=total))
    if torch.backends.mps.is_available():
        found.append(Device(name="mps", description="Apple GPU", **_memory()))
    return found


def _kernels() -> str:
    """Say what the native kernels use here, or what is done without them."""
    native = library()
    return f"no native kernels: {why_not()}" if native is None else f"native kernels use {native.level}"


def _memory() -> dict[str, int]:
    return {"free_bytes": available_bytes(), "total_bytes": _total_bytes()}


def _total_bytes() -> int:

    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _processor() -> tuple[str, tuple[str, ...]]:
    """Return the processor's name and features, as far as the system tells."""
    try:
        lines = _CPUINFO.read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine(), ()
    fields: dict[str, str] = {}
    for line in lines:
        name, _, value = line.partition(":")
        fields.setdefault(name.strip(), value.strip())
    flags = (fields.get("flags") or fields.get("Features") or "").split()
    return fields.get("model name", platform.machine()), tuple(flag for flag in _WIDE if flag in flags)


def num_threads() -> int:
    """Return how many threads compute one operation, which a loaded model decides."""
    return torch.get_num_threads()
