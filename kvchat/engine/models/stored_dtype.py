"""The dtype a model computes in, read from its files alone."""

import json
import struct
from pathlib import Path
from typing import Any

from kvchat.engine.models.checkpoints.model_directory_check import read_config, weight_files
from kvchat.errors import ModelUnreadable

AUTO = "auto"
_NAMES = {"F32": "float32", "BF16": "bfloat16", "F16": "float16", "F64": "float64"}


def stored_dtype(model_dir: Path, wanted: str) -> str:
    """Return the type that `wanted` means for a model: itself, or for `auto` what the checkpoint says.

    Raises:
        ModelUnreadable: config or weights are missing or damaged.
    """
    if wanted != AUTO:
        return wanted
    config = read_config(model_dir)
    text = config.get("text_config")
    for place in (config, text if isinstance(text, dict) else {}):
        for name in ("dtype", "torch_dtype"):
            if isinstance(place.get(name), str):
                return str(place[name]).removeprefix("torch.")
    return _of_weights(weight_files(model_dir)[0])


def _of_weights(path: Path) -> str:
    """Return the type of the first floating tensor of a safetensors file whose header has been checked."""
    try:
        with path.open("rb") as file:
            (num_bytes,) = struct.unpack("<Q", file.read(8))
            entries: dict[str, dict[str, Any]] = json.loads(file.read(num_bytes))
    except (OSError, ValueError, struct.error) as error:
        raise ModelUnreadable(f"{path} cannot be read: {error}") from error
    found = (entry.get("dtype") for name, entry in entries.items() if name != "__metadata__")
    return next((_NAMES[dtype] for dtype in found if dtype in _NAMES), "float32")
