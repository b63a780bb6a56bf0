"""The models that are here: how large they are, and how much of a conversation fits beside them."""

import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from kvchat.engine.cache.arithmetic import cache_sizes, read_shape
from kvchat.engine.memory.host_memory import available_bytes
from kvchat.engine.models.locate import STARTER, installed_model, locate_model
from kvchat.errors import KvchatError
from kvchat.ui.figures import bytes_text, short_count_text
from kvchat.ui.host import ModelEntry

_CONTEXT = 8192


def models_here(current: str, named: Iterable[str], cache_dir: Path) -> tuple[ModelEntry, ...]:
    """Return the starter, what the hub's cache holds and what sessions were held with, each once.

    Args:
        current: the model that answers now.
        named: models by the names that sessions keep.
        cache_dir: where checkpoints made from GGUF files are.
    """
    names = dict.fromkeys([current, STARTER, *_hub_names(), *sorted(filter(None, named))])
    found = []
    for name in names:
        place = _place(name, cache_dir)
        if place is not None:
            summary = summary_of(place, available_bytes())
            found.append(ModelEntry(name=name, summary=summary, is_current=name == current))
    return tuple(found)


def summary_of(place: Path, free_bytes: int) -> str:
    """Return the size of a model's weights, of its cache, and whether both fit into memory."""
    weight_bytes = sum(file.stat().st_size for file in place.glob("*.safetensors"))
    parts = [bytes_text(weight_bytes)]
    try:
        shape = read_shape(json.loads((place / "config.json").read_text(encoding="utf-8")))
        own = cache_sizes(shape, _CONTEXT)[0]
    except (KvchatError, OSError, ValueError):
        return parts[0]
    parts.append(f"{bytes_text(own.token_bytes)} per token")
    room = free_bytes - weight_bytes
    if room <= 0:
        parts.append("does not fit")
    elif own.context_bytes <= room:
        parts.append(f"fits, with {short_count_text(_CONTEXT)} tokens")
    else:
        parts.append(f"fits, with {short_count_text(room // max(1, own.token_bytes))} tokens")
    return " · ".join(parts)


def _place(name: str, cache_dir: Path) -> Path | None:
    try:
        if os.sep in name and Path(name).expanduser().is_dir():
            return locate_model(name, cache_dir=cache_dir).path
        installed = installed_model(name)
    except (KvchatError, OSError):
        return None
    return installed.path if installed else None


def _hub_names() -> Iterator[str]:
    """Yield the hub ids in the local cache; asks no network."""
    from huggingface_hub import constants

    try:
        directories = sorted(Path(constants.HF_HUB_CACHE).glob("models--*--*"))
    except OSError:
        return
    for directory in directories:
        yield directory.name.removeprefix("models--").replace("--", "/", 1)
