"""What a model computes by itself where, from some token on, each head misses tokens of its own."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor

NAME = "pruned_reference"


class Pruned:
    """transformers' own model, with dense attention under a mask for each layer and head."""

    def __init__(self, model_dir: Path) -> None:
        self._model: Any = transformers.AutoModelForCausalLM.from_pretrained(
            model_dir, attn_implementation="eager", dtype=torch.float32
        ).eval()
        config = self._model.config
        self._sliding = [kind == "sliding_attention" for kind in getattr(config, "layer_types", None) or []]
        self._window = getattr(config, "sliding_window", None)
        self._hidden: list[Tensor] = []
        """For each layer which keys a query does not see [H_kv, T, T]."""
        transformers.AttentionInterface.register(NAME, self._attend)

    @torch.inference_mode()
    def exact(self, ids: Sequence[int]) -> tuple[list[Tensor], list[Tensor]]:
        """Return keys [H_kv, T, D] and attention weights [H, T, T] of all layers."""
        self._model.set_attn_implementation("eager")
        cache = transformers.DynamicCache()
        out = self._model(input_ids=torch.tensor([list(ids)]), past_key_values=cache, output_attentions=True)
        return [layer.keys[0] for layer in cache.layers], [weights[0] for weights in out.attentions]

    @torch.inference_mode()
    def logits(self, ids: Sequence[int], dropped: Sequence[Sequence[tuple[int, Tensor]]]) -> Tensor:
        """Return the logits behind every token [T, V].

        Args:
            dropped: for each layer what is missed: from which token on, and which tokens by head [H_kv, n].
        """
        count = len(ids)
        self._hidden = []
        for number, layer in enumerate(dropped):
            num_heads = len(layer[0][1]) if layer else 1
            hidden = torch.ones(count, count, dtype=torch.bool).triu(1).repeat(num_heads, 1, 1)
            if self._sliding and self._sliding[number]:
                hidden |= torch.ones(count, count, dtype=torch.bool).tril(-self._window)
            for at, tokens in layer:
                for head in range(num_heads):
                    hidden[head, at:, tokens[head]] = True
            self._hidden.append(hidden)
        self._model.set_attn_implementation(NAME)
        logits: Tensor = self._model(input_ids=torch.tensor([list(ids)]), use_cache=False).logits[0]
        return logits

    def _attend(
        self, module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Any, scaling: float, **rest: Any
    ) -> tuple[Tensor, None]:
        group = query.shape[1] // key.shape[1]
        hidden = self._hidden[module.layer_idx].repeat_interleave(
            query.shape[1] // len(self._hidden[module.layer_idx]), dim=0
        )
        scores = query[0] @ key[0].repeat_interleave(group, dim=0).transpose(1, 2) * scaling
        weights = scores.masked_fill(hidden, float("-inf")).softmax(dim=2)
        out = weights @ value[0].repeat_interleave(group, dim=0)
        return out.transpose(0, 1)[None], None
