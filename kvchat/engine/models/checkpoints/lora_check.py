"""Required files of an adapter directory. Reads no pickles and no weights.

An adapter is a LoRA as peft saves one: adapter_config.json and adapter_model.safetensors.
"""

from importlib.util import find_spec
from pathlib import Path

from kvchat.engine.models.checkpoints.model_directory_check import (
    ADAPTER_CONFIG,
    ADAPTER_WEIGHTS,
    check_safetensors,
    pickles,
    read_json,
)
from kvchat.errors import ModelNotFound, ModelUnreadable, UnsupportedModel

_UNMERGEABLE = {
    "alora_invocation_tokens": "works only behind certain tokens",
    "arrow_config": "chooses among several adapters",
    "layer_replication": "repeats layers of its model",
    "megatron_config": "needs another library's layers",
}
"""Settings of a LoRA that make it more than other weights of the same model."""


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
