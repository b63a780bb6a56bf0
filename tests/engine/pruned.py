"""What a model computes by itself where, from some token on, each head misses tokens of its own."""

from collections.abc import Sequence

import torch
import transformers
from torch import Tensor

from tests.engine.masked import MaskedHeads


class Pruned(MaskedHeads):
    """A model of which each head misses some tokens."""

    _dropped: Sequence[Sequence[tuple[int, Tensor]]] = ()

    @torch.inference_mode()
    def exact(self, ids: Sequence[int]) -> tuple[list[Tensor], list[Tensor]]:
        """Return keys [H_kv, T, D] and attention weights [H, T, T] of all layers."""
        self._model.set_attn_implementation("eager")
        cache = transformers.DynamicCache()
        out = self._model(input_ids=torch.tensor([list(ids)]), past_key_values=cache, output_attentions=True)
        return [layer.keys[0] for layer in cache.layers], [weights[0] for weights in out.attentions]

    def logits(self, ids: Sequence[int], dropped: Sequence[Sequence[tuple[int, Tensor]]]) -> Tensor:
        """Return the logits behind every token [T, V].

        Args:
            dropped: for each layer what is missed: from which token on, and which tokens by head [H_kv, n].
        """
        self._dropped = dropped
        return self.masked_logits(ids)

    def hidden(self, layer: int, query: Tensor, key: Tensor) -> Tensor:
        hidden = self.behind(layer, len(key), query.shape[1])
        for at, tokens in self._dropped[layer]:
            for head, own in enumerate(tokens):
                hidden[head, at:, own] = True
        return hidden.repeat_interleave(len(query) // len(key), dim=0)
