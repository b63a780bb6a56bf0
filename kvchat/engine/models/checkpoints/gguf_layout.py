"""Layout of a model's parameters in a GGUF file: their names, the order of rows and columns, their values.

Undoes what llama.cpp's converter does (convert_hf_to_gguf.py and conversion/ of llama.cpp).
"""

from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from gguf import get_tensor_name_map
from numpy.typing import NDArray
from torch import Tensor

from kvchat.engine.models.checkpoints.gguf_file import GgufFile

Order = NDArray[np.int64]
"""Positions in the file of a parameter's rows or columns."""

_ABOVE_ONE = ("gemma2", "gemma3", "qwen35", "qwen35moe", "qwen3next")
"""Architectures whose classes keep what a norm's factor is above one; llama.cpp keeps all of it."""
_NAMES: Mapping[str, tuple[tuple[str, ...], ...]] = {
    "dt_bias": (("ssm_dt.bias",),),
    "A_log": (("ssm_a",),),
    "D": (("ssm_d",),),
    "linear_attn.in_proj_qkvz.weight": (("attn_qkv.weight", "attn_gate.weight"), ("ssm_in.weight",)),
    "experts.gate_up_proj": (("ffn_gate_exps.weight", "ffn_up_exps.weight"), ("ffn_gate_up_exps.weight",)),
    "experts.down_proj": (("ffn_down_exps.weight",),),
    "experts.up_proj": (("ffn_up_exps.weight",),),
    "e_score_correction_bias": (("exp_probs_b.bias",),),
    "pre_ff_layernorm.weight": (("ffn_norm",), ("ffn_norm.weight",)),
    "block_sparse_moe.router.weight": (("ffn_gate_inp.weight",),),
    "shared_mlp.input_linear.weight": (
        ("ffn_gate_shexp.weight", "ffn_up_shexp.weight"),
        ("ffn_gate.weight", "ffn_up.weight"),
    ),
    "shared_mlp.output_linear.weight": (("ffn_down_shexp.weight",), ("ffn_down.weight",)),
}
"""By the end of a parameter's name, where the library knows none: the tensors that it may be stacked of."""
_READ_BY_OTHERS: Mapping[str, tuple[str, ...]] = {
    "jamba": (".dt_proj.",),
    "mamba": (".dt_proj.", ".out_proj.", "lm_head."),
    "mamba2": (".out_proj.", "lm_head."),
}
"""Linear layers whose weights the model reads by itself, and which are expanded therefore."""


@dataclass(frozen=True, slots=True)
class Source:
    """Where the numbers of a parameter are.

    Args:
        names: tensors of the file; their outputs follow each other.
        rows, columns: their order, None: that of the file.
        undo: gives the parameter's values.
        stays: whether quantized numbers may stay so.
    """

    names: tuple[str, ...]
    rows: Order | None
    columns: Order | None
    undo: Callable[[Tensor], Tensor] | None
    stays: bool


class Layout:
    """Sources of a model's parameters in one file."""

    def __init__(self, file: GgufFile, config: Any) -> None:
        self._architecture = file.architecture
        self._config = config
        self._there: Container[str] = file.tensors().keys()
        self._names = get_tensor_name_map(file.arch, config.num_hidden_layers)

    def source(self, name: str, num_rows: int, num_columns: int) -> Source:
        """Return the source of a parameter by its name in transformers; pure."""
        orders = _ORDERS.get(self._architecture, {})
        names = self._tensors(name)
        make = next((make for part, make in orders.items() if part in name), None)
        if ".in_proj_qkvz." in name and len(names) == 1:
            make = None  # as it is in files of the first converters
        is_input = ".out_proj." in name
        order = None if make is None else make(self._config, num_columns if is_input else num_rows)
        return Source(
            names=names,
            rows=None if is_input else order,
            columns=order if is_input else None,
            undo=self._undo(name),
            stays=self.stays(name),
        )

    def stays(self, name: str) -> bool:
        """Return whether a linear layer's quantized weight may stay so; pure."""
        return not any(part in name for part in _READ_BY_OTHERS.get(self._architecture, ()))

    def _tensors(self, name: str) -> tuple[str, ...]:
        for end, choices in _NAMES.items():
            if name.endswith(f".{end}"):
                layer = next(part for part in name.split(".") if part.isdigit())
                found = [tuple(f"blk.{layer}.{tensor}" for tensor in tensors) for tensors in choices]
                return next((names for names in found if names[0] in self._there), found[0])
        stem, _, kind = name.rpartition(".")
        if self._architecture.startswith("nemotron_h"):
            stem = stem.replace("model.layers", "backbone.layers")
        return (f"{self._names.get_name(stem)}.{kind}",)

    def _undo(self, name: str) -> Callable[[Tensor], Tensor] | None:
        if name.endswith("A_log"):
            return lambda numbers: torch.log(-numbers)
        is_above_one = self._architecture in _ABOVE_ONE and "norm" in name and "linear_attn.norm" not in name
        return (lambda numbers: numbers - 1) if is_above_one else None


def _halves(num_heads: int, num_rows: int) -> Order:
    """llama.cpp turns neighbours of a head, transformers its halves."""
    return np.arange(num_rows).reshape(num_heads, -1, 2).swapaxes(1, 2).reshape(num_rows)


def _grouped(first: int, config: Any, num_rows: int) -> Order:
    """From `first` on, llama.cpp has the first value heads of all key heads, then the second ones."""
    num_key_heads = config.linear_num_key_heads
    rest = np.arange(first, num_rows)
    tiles = rest.reshape(config.linear_num_value_heads // num_key_heads, num_key_heads, -1)
    return np.concatenate([np.arange(first), tiles.swapaxes(0, 1).reshape(-1)])


def _grouped_values(config: Any, num_rows: int) -> Order:
    return _grouped(0, config, num_rows)


def _grouped_behind_keys(config: Any, num_rows: int) -> Order:
    return _grouped(2 * config.linear_num_key_heads * config.linear_key_head_dim, config, num_rows)


def _by_key_head(config: Any, num_rows: int) -> Order:
    """llama.cpp has all queries, keys, values and gates, transformers those of each key head together."""
    num_heads = config.linear_num_key_heads
    num_keys = num_heads * config.linear_key_head_dim
    num_values = (num_rows - 2 * num_keys) // 2
    parts = np.split(np.arange(num_rows), [num_keys, 2 * num_keys, 2 * num_keys + num_values])
    return np.concatenate([part.reshape(num_heads, -1) for part in parts], axis=1).reshape(-1)


_TURNED: Mapping[str, Callable[[Any, int], Order]] = {
    ".q_proj.": lambda config, num_rows: _halves(config.num_attention_heads, num_rows),
    ".k_proj.": lambda config, num_rows: _halves(config.num_key_value_heads, num_rows),
}
_TILED: Mapping[str, Callable[[Any, int], Order]] = {
    ".in_proj_qkv.": _grouped_behind_keys,
    ".conv1d.": _grouped_behind_keys,
    **dict.fromkeys((".in_proj_z.", ".in_proj_b.", ".in_proj_a.", ".A_log", ".dt_bias"), _grouped_values),
    ".linear_attn.out_proj.": _grouped_values,
}
_ORDERS = {
    **dict.fromkeys(("llama", "granitehybrid", "nemotron_h", "nemotron_h_moe"), _TURNED),
    "qwen35": _TILED,
    "qwen35moe": _TILED,
    "qwen3next": {".in_proj_qkvz.": _by_key_head},
}
"""By architecture and a part of a parameter's name: of its rows, of the columns of what reads them."""
