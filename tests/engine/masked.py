"""What a model computes with its own dense attention where some keys are masked for some queries."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor


class MaskedHeads(ABC):
    """transformers' own model, with dense attention under a mask of our own for each layer and head."""

    def __init__(self, model_dir: Path) -> None:
        self._model: Any = transformers.AutoModelForCausalLM.from_pretrained(
            model_dir, attn_implementation="eager", dtype=torch.float32
        ).eval()
        config = self._model.config
        self._sliding = [kind == "sliding_attention" for kind in getattr(config, "layer_types", None) or []]
        self._window = getattr(config, "sliding_window", None)
        self._name = f"masked_{type(self).__name__}"
        transformers.AttentionInterface.register(self._name, self._attend)

    @abstractmethod
    def hidden(self, layer: int, query: Tensor, key: Tensor) -> Tensor:
        """Return which keys [H_kv, T, D] queries [H, T, D], scaled, do not see, [H, T, T]."""

    def has_window(self, layer: int) -> bool:
        return bool(self._sliding) and self._sliding[layer]

    def behind(self, layer: int, num_heads: int, count: int) -> Tensor:
        """Return what no query of a layer sees: what comes later, or before its own window [H, T, T]."""
        hidden = torch.ones(count, count, dtype=torch.bool).triu(1)
        if self.has_window(layer):
            hidden |= torch.ones(count, count, dtype=torch.bool).tril(-self._window)
        return hidden.repeat(num_heads, 1, 1)

    @torch.inference_mode()
    def masked_logits(self, ids: Sequence[int]) -> Tensor:
        """Return the logits behind every token [T, V]."""
        self._model.set_attn_implementation(self._name)
        logits: Tensor = self._model(input_ids=torch.tensor([list(ids)]), use_cache=False).logits[0]
        return logits

    def _attend(
        self, module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Any, scaling: float, **rest: Any
    ) -> tuple[Tensor, None]:
        group = query.shape[1] // key.shape[1]
        hidden = self.hidden(module.layer_idx, query[0] * scaling, key[0])
        scores = query[0] @ key[0].repeat_interleave(group, dim=0).transpose(1, 2) * scaling
        weights = scores.masked_fill(hidden, float("-inf")).softmax(dim=2)
        out = weights @ value[0].repeat_interleave(group, dim=0)
        return out.transpose(0, 1)[None], None
