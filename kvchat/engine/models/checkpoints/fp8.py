"""Checkpoints whose weights are 8-bit floats with a factor for each block, as DeepSeek-V3 is published.

Expanded here: transformers takes the size of a block from the number of factors, which is wrong wherever the
last block of a row or column is not full (576 rows in five blocks of 128), and says nothing.
"""

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from kvchat.engine.models.checkpoints.model_directory_check import (
    INDEX_FILE,
    check_safetensors,
    read_config,
    weight_files,
)
from kvchat.engine.models.checkpoints.prepared import MakeRoom, copy_if_there
from kvchat.engine.models.load import DTYPES
from kvchat.errors import ModelUnreadable, UnsupportedModel

FACTORS = "_scale_inv"
"""What the factors of a weight are called, behind its own name."""
_KINDS = (torch.float8_e4m3fn, torch.float8_e5m2)
_FACTOR_KINDS = (torch.float32, torch.bfloat16, torch.float16)


def expand(weight: Tensor, factors: Tensor, block: tuple[int, int]) -> Tensor:
    """Return a weight [N, K] of 8-bit floats in float32.

    Args:
        factors: [ceil(N / block[0]), ceil(K / block[1])]; each number is multiplied by that of its block.

    Raises: ValueError: there are more or fewer factors than blocks.
    """
    rows, columns = weight.shape
    if factors.shape != (math.ceil(rows / block[0]), math.ceil(columns / block[1])):
        raise ValueError(f"{list(factors.shape)} factors for {rows} x {columns} numbers in blocks of {block}")
    wide = factors.float().repeat_interleave(block[0], 0)[:rows].repeat_interleave(block[1], 1)[:, :columns]
    return weight.float() * wide


def write_expanded(
    model_dir: Path, directory: Path, report: Callable[[str], None], make_room: MakeRoom
) -> None:
    """Write the same checkpoint with plain weights, file by file.

    Args:
        make_room: called before each file.

    Raises:
        ModelUnreadable: factors are missing, or not those of their weights.
        UnsupportedModel: weights or factors are written in another way.
    """
    config = read_config(model_dir)
    settings = config.pop("quantization_config")
    name = str(config.get("dtype") or config.get("torch_dtype") or "bfloat16")
    dtype = DTYPES.get(name.removeprefix("torch."), torch.bfloat16)
    files = weight_files(model_dir)
    places = {name: file for file in files for name in check_safetensors(file)}
    for count, file in enumerate(files):
        report(f"expanding 8-bit floats, {count / len(files):.0%}; only this once")
        with safe_open(file, "pt") as tensors:
            plain = {
                name: _plain(name, tensors.get_tensor(name), places, settings, dtype)
                for name in tensors.keys()  # noqa: SIM118  no dictionary
                if not name.endswith(FACTORS)
            }
        make_room(sum(tensor.nbytes for tensor in plain.values()))
        save_file(plain, directory / file.name, {"format": "pt"})
    (directory / "config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")
    if (model_dir / INDEX_FILE).is_file():
        _write_index(model_dir, directory)
    copy_if_there(model_dir, directory, "generation_config.json")


def _plain(
    name: str, tensor: Tensor, places: Mapping[str, Path], settings: Mapping[str, Any], dtype: torch.dtype
) -> Tensor:
    factors_name = name + FACTORS
    if factors_name not in places:
        if tensor.dtype in _KINDS:
            raise ModelUnreadable(f"{name} has 8-bit floats and no factors ({factors_name}). Fetch it again.")
        return tensor
    with safe_open(places[factors_name], "pt") as tensors:
        factors = tensors.get_tensor(factors_name)
    block = settings.get("weight_block_size")
    is_known = tensor.dtype in _KINDS and factors.dtype in _FACTOR_KINDS and tensor.dim() == 2
    if not is_known or not isinstance(block, list) or len(block) != 2:
        raise UnsupportedModel(
            f"{name} is written as {tensor.dtype} with factors in {factors.dtype}; what is read are E4M3 "
            "and E5M2 in blocks of two dimensions with plain factors. Use a 16-bit version of this model."
        )
    try:
        return expand(tensor, factors, (int(block[0]), int(block[1]))).to(dtype)
    except ValueError as error:
        raise ModelUnreadable(f"{name} has {error}. Fetch the model again.") from error


def _write_index(model_dir: Path, directory: Path) -> None:
    index = json.loads((model_dir / INDEX_FILE).read_bytes())
    names = {name: file for name, file in index["weight_map"].items() if not name.endswith(FACTORS)}
    (directory / INDEX_FILE).write_text(json.dumps({"metadata": {}, "weight_map": names}), encoding="utf-8")
