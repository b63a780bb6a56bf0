"""A LoRA on a model: peft reads it and adds it to the weights, so that what runs is the model's own class."""

import warnings
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from kvchat.engine.models.checkpoints.lora_check import adapter_weights, check_adapter
from kvchat.errors import KvchatError, OutOfMemory, UnsupportedModel


def merge_adapter(module: Any, adapter_dir: Path) -> Any:
    """Return the model with an adapter's weights added to its own.

    Raises:
        ModelError: no LoRA, damaged, a pickle, made for another model, or peft is not installed.
        OutOfMemory: the sum does not fit.

    Effect:
        Changes `module`, which is worthless after an error, and meanwhile torch for the whole process: the
        caller holds `BUILD_LOCK`.
    """
    check_adapter(adapter_dir)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what does not fit is checked below, by name
            return _merged(module, adapter_dir)
    except KvchatError:
        raise
    except (MemoryError, torch.OutOfMemoryError) as error:
        raise OutOfMemory(f"the adapter {adapter_dir} does not fit into memory beside its model") from error
    except Exception as error:  # whatever peft says to an adapter of another model
        raise _no_fit(adapter_dir, f"{type(error).__name__}: {error}") from error


def _merged(module: Any, adapter_dir: Path) -> Any:
    import peft

    model = peft.PeftModel.from_pretrained(module, adapter_dir, torch_device="cpu", local_files_only=True)
    _require_all_used(model, adapter_dir)
    return model.merge_and_unload(safe_merge=True)


def _require_all_used(model: Any, adapter_dir: Path) -> None:
    """Refuse an adapter of which a part has no place in the model, or that leaves a place empty."""
    import peft

    wanted = set(peft.get_peft_model_state_dict(model, save_embedding_layers=False))
    with safe_open(adapter_weights(adapter_dir), framework="pt") as file:
        given = set(file.keys())
    missing = sorted(wanted - given)
    foreign = sorted(given - wanted - model.state_dict().keys())
    if missing:
        raise _no_fit(adapter_dir, f"it lacks {missing[0]}")
    if foreign:
        raise _no_fit(adapter_dir, f"the model has no place for {foreign[0]}")


def _no_fit(adapter_dir: Path, reason: str) -> UnsupportedModel:
    reason = reason.partition("\n")[0][:300]
    return UnsupportedModel(
        f"the adapter {adapter_dir} does not fit this model: {reason}. Give the model it was trained on."
    )
