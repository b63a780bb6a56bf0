"""The models that are here: how large they are, and how much of a conversation fits beside them."""

import json
import os
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvchat.app.interface_types import ModelEntry
from kvchat.engine.formats.kv_size import cache_sizes, read_shape
from kvchat.engine.models.locate import GGUF_SUFFIX, STARTER, installed_model, locate_model
from kvchat.errors import KvchatError
from kvchat.platform.host_memory import available_bytes
from kvchat.text.figures import bytes_text, short_count_text

_CONTEXT = 8192


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryFit:
    """What there is for a model that is loaded in the place of the running one.

    Args:
        free_bytes: on the device that it is loaded to; None: nobody can say that yet.
        running: directory of the model that runs, whose weights give way; None: none does.
        cache_bytes: of KV that gives way with it.
    """

    free_bytes: int | None
    running: Path | None = None
    cache_bytes: int = 0

    @property
    def num_bytes(self) -> int | None:
        if self.free_bytes is None:
            return None
        return self.free_bytes + self.cache_bytes + (weight_bytes(self.running) if self.running else 0)


def models_here(
    current: str, named: Iterable[str], cache_dir: Path, memory: MemoryFit
) -> tuple[ModelEntry, ...]:
    """Return the starter, what the hub's cache holds and what sessions were held with, each once.

    Args:
        current: the model that answers now.
        named: models by the names that sessions keep.
        cache_dir: where checkpoints made from GGUF files are.
        memory: what there is for another model.
    """
    names = dict.fromkeys([current, STARTER, *_hub_names(), *sorted(filter(None, named))])
    return tuple(
        ModelEntry(name=name, summary=summary, is_current=name == current)
        for name in names
        if (summary := _summary(name, cache_dir, memory, is_current=name == current)) is not None
    )


def free_bytes_of(device: str) -> int | None:
    """Return what can be allocated on a device; None for a GPU while torch is not loaded."""
    torch: Any = sys.modules.get("torch")  # a list of models must not wait for it
    has_gpu = torch is not None and torch.cuda.is_available()
    if device.startswith("cuda") or (device == "auto" and has_gpu):
        return int(torch.cuda.mem_get_info()[0]) if has_gpu else None
    return available_bytes()


def summary_of(place: Path, free_bytes: int | None) -> str:
    """Return the size of a model's weights, of its cache, and whether both fit into memory; None: unknown."""
    needed = weight_bytes(place)
    parts = [bytes_text(needed)]
    try:
        shape = read_shape(json.loads((place / "config.json").read_text(encoding="utf-8")))
        own = cache_sizes(shape, _CONTEXT)[0]
    except (KvchatError, OSError, ValueError):
        return parts[0]
    parts.append(f"{bytes_text(own.token_bytes)} per token")
    if free_bytes is None:
        return " · ".join(parts)
    room = free_bytes - needed
    if room <= 0:
        parts.append("does not fit")
    elif own.context_bytes <= room:
        parts.append(f"fits, with {short_count_text(_CONTEXT)} tokens")
    else:
        parts.append(f"fits, with {short_count_text(room // max(1, own.token_bytes))} tokens")
    return " · ".join(parts)


def _summary(name: str, cache_dir: Path, memory: MemoryFit, *, is_current: bool) -> str | None:
    """Return what is said of a model; None: it is not here."""
    if is_current and memory.running is not None:
        return summary_of(memory.running, memory.num_bytes)
    if name.endswith(GGUF_SUFFIX):
        return _gguf_summary(Path(name), memory.num_bytes)
    place = _place(name, cache_dir)
    return None if place is None else summary_of(place, memory.num_bytes)


def _gguf_summary(file: Path, free_bytes: int | None) -> str | None:
    """Return the size of a GGUF file. Its weights take about as much; its header is not read for a list."""
    try:
        num_bytes = file.stat().st_size
    except OSError:
        return None
    parts = [bytes_text(num_bytes), "GGUF"]
    if free_bytes is not None:
        parts.append("fits" if num_bytes < free_bytes else "does not fit")
    return " · ".join(parts)


def weight_bytes(place: Path) -> int:
    return sum(file.stat().st_size for file in place.glob("*.safetensors"))


def _place(name: str, cache_dir: Path) -> Path | None:
    try:
        if os.sep in name and Path(name).expanduser().is_dir():
            return locate_model(name, cache_dir=cache_dir).path
        installed = installed_model(name)
    except (KvchatError, OSError):
        return None
    return installed.path if installed else None


def _hub_names() -> Iterator[str]:
    """Yield the hub ids in the local cache, and the GGUF files in it by their places; asks no network."""
    from huggingface_hub import constants

    try:
        directories = sorted(Path(constants.HF_HUB_CACHE).glob("models--*--*"))
        for directory in directories:
            yield directory.name.removeprefix("models--").replace("--", "/", 1)
            yield from map(str, sorted(directory.glob(f"snapshots/*/*{GGUF_SUFFIX}")))
    except OSError:
        return
