"""Fingerprint: the digest of everything KV depends on besides token ids."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any

from kvchat.engine.api.ids import GroupId
from kvchat.engine.memory.disk.block_file import Layout
from kvchat.engine.models.checkpoints.model_directory_check import (
    ADAPTER_CONFIG,
    adapter_weights,
    read_config,
    read_json,
    weight_files,
)
from kvchat.engine.models.checkpoints.weight_digests import WeightDigests

FINGERPRINT_BYTES = 32
_PERSON = b"kvchat.print1"

# Keys of config.json that say nothing about K and V. A key that is not listed counts, whatever it means: a
# fingerprint that is too narrow costs time, one that is too wide costs truth.
_VOLATILE = frozenset(
    {
        "_attn_implementation",
        "_name_or_path",
        "auto_map",
        "bos_token_id",
        "dtype",  # the dtype in use is part of the digest by itself
        "eos_token_id",
        "finetuning_task",
        "id2label",
        "label2id",
        "output_attentions",
        "output_hidden_states",
        "pad_token_id",
        "problem_type",
        "return_dict",
        "torch_dtype",
        "torchscript",
        "transformers.js_config",
        "transformers_version",
        "use_cache",
    }
)

# The same of adapter_config.json: where the base lay when the adapter was trained, and by which peft.
_VOLATILE_IN_ADAPTERS = frozenset(
    {"auto_mapping", "base_model_name_or_path", "inference_mode", "peft_version", "revision"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """What files say about a model, wherever they lie and whatever they are called.

    Args:
        weights: SHA-256 of each weight file, in the index's order.
        config: what config.json means; rotary embeddings, windows and head counts are in it.
        adapter: digest of the adapter that is merged into the weights; empty: none.
    """

    weights: tuple[str, ...]
    config: Mapping[str, Any]
    adapter: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Storage:
    """How keys and values are computed and kept.

    Args:
        route: by what the model runs on the cache; routes may differ in the last bits, and in what they keep.
        dtype: in which K and V are computed and, in the exact format, stored.
        layouts: for each group the tensors of one block, in the order of their bytes.
        rope_layouts: of groups that keep rope keys by themselves: in which order their numbers stand. It is
            that of the library which computes them, and a config need not say it.
    """

    route: str
    dtype: str
    cache_format: str
    block_size: int
    layouts: Mapping[GroupId, Layout]
    rope_layouts: Mapping[GroupId, str] = field(default_factory=dict)
    states: Mapping[GroupId, str] = field(default_factory=dict)


def read_checkpoint(model_dir: Path, adapter_dir: Path | None, digests: WeightDigests) -> Checkpoint:
    """Return what the files of a model, and of an adapter for it, hold at this moment.

    Raises: ModelUnreadable: config or weights are missing.

    Effect: may read every byte of the weights; `digests` remembers them.
    """
    config = meaning_of(read_config(model_dir))
    weights = tuple(digests.digest(path) for path in weight_files(model_dir))
    adapter = _adapter_digest(adapter_dir, digests) if adapter_dir is not None else ""
    return Checkpoint(weights=weights, config=config, adapter=adapter)


def meaning_of(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return of a config what keys and values may depend on."""
    return _without(config, _VOLATILE)


def fields_of(checkpoint: Checkpoint, storage: Storage) -> dict[str, Any]:
    """Return what a fingerprint is taken over, by name, as JSON keeps it.

    It is the weights' bytes, what the configs mean, and how K and V are computed and kept; not names and
    places, nor device, thread count or library version.
    """
    of_groups = {"rope_layouts": storage.rope_layouts, "states": storage.states}
    return {
        name: {str(group): text for group, text in fields.items()}
        for name, fields in of_groups.items()
        if fields
    } | {
        "weights": list(checkpoint.weights),
        "config": dict(checkpoint.config),
        "adapter": checkpoint.adapter,
        "route": storage.route,
        "dtype": storage.dtype,
        "cache_format": storage.cache_format,
        "block_size": storage.block_size,
        "layouts": {
            str(group): [[region.name, region.dtype, list(region.shape)] for region in layout]
            for group, layout in storage.layouts.items()
        },
    }


def digest_of(fields: Mapping[str, Any]) -> bytes:
    """Return the 32-byte digest that every block key of a model descends from, of what `fields_of` returns or
    of the same read back from JSON.
    """
    canonical = json.dumps(fields, sort_keys=True, separators=(",", ":")).encode()
    return blake2b(canonical, digest_size=FINGERPRINT_BYTES, person=_PERSON).digest()


def _adapter_digest(adapter_dir: Path, digests: WeightDigests) -> str:
    config = _without(read_json(adapter_dir / ADAPTER_CONFIG), _VOLATILE_IN_ADAPTERS)
    return digest_of({"config": config, "weights": digests.digest(adapter_weights(adapter_dir))}).hex()


def _without(config: Any, volatile: frozenset[str]) -> Any:
    """Return a config without the keys that say nothing about K and V, at every depth."""
    if isinstance(config, dict):
        return {key: _without(value, volatile) for key, value in config.items() if key not in volatile}
    if isinstance(config, list):
        return [_without(value, volatile) for value in config]
    return config
