"""Required files of the directories of models and of adapters. Reads headers only, and no pickles.

An adapter is a LoRA as peft saves one: adapter_config.json and adapter_model.safetensors.
"""

import json
import os
import struct
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from kvchat.errors import ModelNotFound, ModelUnreadable, UnsupportedModel

MAX_HEADER_BYTES = 100_000_000
"""The limit of the safetensors format itself."""

_SINGLE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
ADAPTER_CONFIG = "adapter_config.json"
ADAPTER_WEIGHTS = "adapter_model.safetensors"
_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
_DTYPES = {"F32": "float32", "BF16": "bfloat16", "F16": "float16", "F64": "float64"}
_UNMERGEABLE = {
    "alora_invocation_tokens": "works only behind certain tokens",
    "arrow_config": "chooses among several adapters",
    "layer_replication": "repeats layers of its model",
    "megatron_config": "needs another library's layers",
}
"""Settings of a LoRA that make it more than other weights of the same model."""


def check_model(model_dir: Path) -> None:
    """Refuse a directory that cannot be loaded, before torch is.

    Raises:
        ModelUnreadable: no or broken config, weights missing, cut short or only in formats that run code.
        UnsupportedModel: its code would have to come with it.
    """
    config = read_config(model_dir)
    model_type = config.get("model_type")
    if not isinstance(model_type, str):
        raise ModelUnreadable(f"{model_dir / 'config.json'} does not say which model it is (no model_type).")
    if "auto_map" in config and not _is_known(model_type):
        raise UnsupportedModel(
            f"{model_dir} is a {model_type!r} model that brings its own code, which kvchat never runs. "
            "Use a model that transformers itself knows, or `-m starter`."
        )
    for path in weight_files(model_dir):
        check_safetensors(path)


def read_config(model_dir: Path) -> dict[str, Any]:
    """Return config.json.

    Raises: ModelUnreadable: there is none, it is no JSON object, or an adapter lies beside it.
    """
    if (model_dir / ADAPTER_CONFIG).is_file():
        # transformers would merge it without a word wherever peft is installed, and not where it is not.
        raise ModelUnreadable(
            f"{model_dir} holds a LoRA adapter. Keep {ADAPTER_CONFIG} and {ADAPTER_WEIGHTS} in a directory "
            "of their own, give that with --adapter, and the model it was trained on with -m."
        )
    return read_json(model_dir / "config.json")


def has_fp8_blocks(config: Mapping[str, Any]) -> bool:
    """Return whether a config says that weights are 8-bit floats in blocks with factors."""
    settings = config.get("quantization_config")
    return isinstance(settings, Mapping) and settings.get("quant_method") == "fp8"


def weight_files(model_dir: Path) -> tuple[Path, ...]:
    """Return the files that hold the weights, in the order in which the index names them.

    Raises: ModelUnreadable: there are none, one that the index names is missing, or they are pickles.
    """
    single = model_dir / _SINGLE
    if single.is_file():
        return (single,)
    if not (model_dir / INDEX_FILE).is_file():
        raise ModelUnreadable(_what_is_there_instead(model_dir))
    shards = tuple(model_dir / name for name in _shard_names(model_dir / INDEX_FILE))
    missing = [shard for shard in shards if not shard.is_file()]
    if missing:
        raise ModelUnreadable(
            f"{missing[0]} is missing ({len(missing)} of {len(shards)} weight files are). "
            "Fetch the model again, or use `-m starter`."
        )
    return shards


def _shard_names(index: Path) -> tuple[str, ...]:
    weight_map = read_json(index).get("weight_map")
    names = tuple(dict.fromkeys(weight_map.values())) if isinstance(weight_map, dict) else ()
    if not names or not all(isinstance(name, str) and _is_safe(name) for name in names):
        raise ModelUnreadable(f"{index} does not name weight files of its own directory.")
    return names


def _is_safe(name: str) -> bool:
    return name.endswith(".safetensors") and Path(name).name == name


def pickles(directory: Path) -> list[str]:
    """Return the names of the files that would have to be unpickled, in order."""
    return sorted(path.name for path in directory.iterdir() if path.name.endswith(_PICKLES))


def _what_is_there_instead(model_dir: Path) -> str:
    others = sorted(
        path.name for path in model_dir.iterdir() if path.name.endswith((".safetensors", ".gguf"))
    )
    if found := pickles(model_dir):
        return (
            f"{model_dir} has its weights only as {found[0]}: a pickle can run any code, so kvchat "
            "never opens one. Use a safetensors version of this model, or `-m starter`."
        )
    if others:
        return f"{model_dir} has {others[0]}, but neither {_SINGLE} nor {INDEX_FILE}, which kvchat loads."
    return f"{model_dir} has no weights ({_SINGLE}, or {INDEX_FILE}). Use another, or `-m starter`."


def check_safetensors(path: Path) -> dict[str, Any]:
    """Compare the file's length with what its header announces, and return what this says of each tensor; the
    weights themselves are not read.

    Raises: ModelUnreadable: it is cut short, or no such file at all.
    """
    try:
        with open(path, "rb") as file:
            num_bytes = os.fstat(file.fileno()).st_size
            header_bytes = struct.unpack("<Q", file.read(8))[0]
            if header_bytes > min(MAX_HEADER_BYTES, num_bytes - 8):
                raise ValueError("its header is cut short")
            entries: dict[str, Any] = json.loads(file.read(header_bytes))
        entries.pop("__metadata__", None)
        ends = [entry["data_offsets"][1] for entry in entries.values()]
        if 8 + header_bytes + max(ends) != num_bytes:
            raise ValueError(f"it has {num_bytes} bytes and should have {8 + header_bytes + max(ends)}")
    except (
        OSError,
        ValueError,
        LookupError,
        TypeError,
        AttributeError,
        RecursionError,
        struct.error,
    ) as error:
        raise ModelUnreadable(
            f"{path} is not a whole safetensors file: {error}. Fetch the model again, or use `-m starter`."
        ) from error
    return entries


def stored_dtype(model_dir: Path, wanted: str) -> str:
    """Return the type that `wanted` means for a model: itself, or for `auto` what the checkpoint says.

    Raises: ModelUnreadable: config or weights are missing or damaged.
    """
    if wanted != "auto":
        return wanted
    config = read_config(model_dir)
    text = config.get("text_config")
    for place in (config, text if isinstance(text, dict) else {}):
        for name in ("dtype", "torch_dtype"):
            if isinstance(place.get(name), str):
                return str(place[name]).removeprefix("torch.")
    found = (entry.get("dtype") for entry in check_safetensors(weight_files(model_dir)[0]).values())
    return next((_DTYPES[dtype] for dtype in found if dtype in _DTYPES), "float32")


def read_json(path: Path) -> dict[str, Any]:
    """Return the object in a file of a model's directory.

    Raises: ModelUnreadable: there is no such file, or it holds something else.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ModelUnreadable(f"{path.parent} is not a model directory: it has no {path.name}.") from error
    except (OSError, ValueError, RecursionError) as error:
        raise ModelUnreadable(f"{path} cannot be read: {error}.") from error
    if not isinstance(value, dict):
        raise ModelUnreadable(f"{path} is not a JSON object.")
    return value


def _is_known(model_type: str) -> bool:
    """Whether transformers itself has this model; reads its lists as text, since importing loads torch."""
    spec = find_spec("transformers")
    if spec is None or not spec.submodule_search_locations:
        return False
    lists = Path(spec.submodule_search_locations[0], "models", "auto")
    names = ("auto_mappings.py", "configuration_auto.py")
    texts = (lists.joinpath(name) for name in names)
    return any(f'("{model_type}", ' in path.read_text(encoding="utf-8") for path in texts if path.is_file())


def check_adapter(adapter_dir: Path) -> None:
    """Refuse a directory that is no LoRA in safetensors, before torch is loaded.

    Raises:
        ModelNotFound: there is no such directory.
        ModelUnreadable: a file is missing, damaged, or a pickle.
        UnsupportedModel: an adapter of another kind, or peft is not installed.
    """
    if not adapter_dir.is_dir():
        raise ModelNotFound(f"There is no adapter directory {adapter_dir}. Give the one that peft has saved.")
    config = read_json(adapter_dir / ADAPTER_CONFIG)
    kind = config.get("peft_type")
    if kind != "LORA":
        raise UnsupportedModel(f"{adapter_dir} is an adapter of type {kind!r}; kvchat takes LORA alone.")
    for name, what in _UNMERGEABLE.items():
        if config.get(name) is not None:
            raise UnsupportedModel(f"{adapter_dir} {what} ({name}), so it cannot be merged into the weights.")
    check_safetensors(adapter_weights(adapter_dir))
    if find_spec("peft") is None:
        raise UnsupportedModel(
            f"{adapter_dir} is a LoRA adapter, which peft reads. Install it with: pip install 'kvchat[lora]'"
        )


def adapter_weights(adapter_dir: Path) -> Path:
    """Return the file that holds an adapter's weights.

    Raises: ModelUnreadable: there is none, or only a pickle.
    """
    path = adapter_dir / ADAPTER_WEIGHTS
    if path.is_file():
        return path
    if found := pickles(adapter_dir):
        raise ModelUnreadable(
            f"{adapter_dir} has its weights only as {found[0]}: a pickle can run any code, so kvchat never "
            "opens one. Save the adapter again with safe_serialization=True."
        )
    raise ModelUnreadable(f"{adapter_dir} has no {ADAPTER_WEIGHTS}. Save the adapter again with peft.")
