"""Description of this machine's processors, kernels and devices, before a model is loaded."""

import os
import platform
from dataclasses import dataclass
from pathlib import Path

import torch

from kvchat.engine.kernels.decoder_layers.native import rounds_products
from kvchat.engine.kernels.health import HEALTH
from kvchat.engine.kernels.native.library import library, why_not
from kvchat.engine.kernels.threads import usable_cores
from kvchat.engine.kernels.triton_support import why_unsupported
from kvchat.platform.host_memory import available_bytes

_CPUINFO = Path("/proc/cpuinfo")
_PCI_DEVICES = Path("/sys/bus/pci/devices")
_NVIDIA, _DISPLAY = "0x10de", "0x03"
"""As Linux names them."""
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
    gpu: what computes on NVIDIA GPUs, or why nothing does.
    gpu_advice: what to do where one is there and is not used as it could be; None: nothing.
    num_cores: processors this process may use.
    """

    processor: str
    instructions: str
    features: tuple[str, ...]
    kernels: str
    gpu: str
    gpu_advice: str | None
    num_cores: int
    devices: tuple[Device, ...]


def this_machine() -> Machine:
    """Look at processors, memory and accelerators."""
    processor, features = _processor()
    gpu, gpu_advice = _gpu()
    return Machine(
        processor=processor,
        instructions=torch.backends.cpu.get_cpu_capability(),
        features=features,
        kernels=_kernels(),
        gpu=gpu,
        gpu_advice=gpu_advice,
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
    if native is None:
        return f"no native kernels: {why_not()}"
    rounded = ", prompts bfloat16 (8 bits over int8 and int4 weights)" if rounds_products(native) else ""
    return f"native kernels use {native.level}{rounded}"


def _gpu() -> tuple[str, str | None]:
    """Say what computes on NVIDIA GPUs, and what could be done so that more does."""
    if not torch.cuda.is_available():
        if not _has_nvidia_gpu():
            return "no GPU for CUDA", None
        if torch.version.cuda is None:
            return "a GPU that is not used", "this torch is built without CUDA: install one with it"
        return "a GPU that is not used", "there is no driver for it that torch can use: nvidia-smi says more"
    problem = why_unsupported(0)
    if problem is not None:
        return "plain torch operations, no kernels", problem
    if HEALTH.problems:
        failed = "; ".join(f"{operation}: {reason}" for operation, reason in HEALTH.problems.items())
        return f"kernels, but not for {', '.join(HEALTH.problems)}", failed
    return "kernels of its own for attention, storing and moving blocks", None


def _has_nvidia_gpu() -> bool:
    """Whether a graphics device of NVIDIA is there, whatever drives it."""
    for device in _PCI_DEVICES.glob("*"):
        try:
            vendor, kind = ((device / name).read_text().strip() for name in ("vendor", "class"))
        except OSError:
            continue
        if vendor == _NVIDIA and kind.startswith(_DISPLAY):
            return True
    return False


def _memory() -> dict[str, int]:
    total_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return {"free_bytes": available_bytes(), "total_bytes": total_bytes}


def processor_name() -> str:
    """Return what the processor is called, as far as the system tells."""
    return _processor()[0]


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
