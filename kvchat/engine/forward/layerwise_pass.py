"""A forward pass that walks through a model's decoder layers by itself.

For GPUs. Keys are turned and stored with their values in one launch, which a model's own attention cannot
leave to us: it hands keys over when they are turned. What lies between two calls of attention is one function
of tensors, which can be compiled. Dimensions: T rows, R sampling rows, V vocabulary.
"""

import logging
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from kvchat.engine.forward.fused_pass import Fusion
from kvchat.engine.forward.runner import InputBatch
from kvchat.engine.kernels.decoder_layers.args import DecoderLayer
from kvchat.engine.kernels.decoder_layers.reference import norm_of
from kvchat.engine.kernels.decoder_layers.torch_layers import (
    LayerWeights,
    Projected,
    after_attention,
    before_attention,
    linear_of,
    weights_of,
    with_weights,
)
from kvchat.engine.kernels.paged_attention import paged_attention
from kvchat.engine.kernels.rope_and_store import rope_store
from kvchat.engine.kernels.rope_and_store.reference import RopeStore
from kvchat.engine.kernels.store_kv import store_kv
from kvchat.engine.memory.device_pool import DevicePool

log = logging.getLogger(__name__)
Between = Callable[[Tensor, Tensor, LayerWeights, LayerWeights], tuple[Tensor, Projected]]
Compile = Callable[[Between], Between]


class LayerwisePass:
    """Computes rows of tokens on a pool.

    Raises:
        ValueError: the weights are packed or quantized.
    """

    follows_from_tensors = True

    def __init__(self, fusion: Fusion, pool: DevicePool) -> None:
        self.fusion = fusion
        self._pools = [pool.layers[number] for number in sorted(pool.layers)]
        self._weights = [weights_of(layer) for layer in fusion.layers]
        weight, _ = self._weights[0].products[0]
        self.device, self.dtype = weight.device, weight.dtype
        self._between: list[Between] = []
        self.use(None)

    def use(self, compile: Compile | None, on_failure: Callable[[], None] | None = None) -> None:
        """Compute what lies between calls of attention by what `compile` makes of it, once for all pairs of
        layers that compute the same.

        Args:
            on_failure: called where it fails later, and it goes on without, with a warning; None: the error
                is raised.
        """
        made: dict[Any, Between] = {}
        layers = self.fusion.layers
        self._between.clear()
        for layer, following in pairwise(layers):
            kinds = layer.kind, following.kind
            if kinds not in made:
                plain = partial(_between, layer, following)
                made[kinds] = plain if compile is None else compile(plain)
                if compile is not None and on_failure is not None:
                    made[kinds] = self._or_plain(made[kinds], plain, on_failure)
            self._between.append(made[kinds])

    def _or_plain(self, compiled: Between, plain: Between, on_failure: Callable[[], None]) -> Between:
        def between(*tensors: Any) -> Any:
            try:
                return compiled(*tensors)
            except (torch.AcceleratorError, torch.OutOfMemoryError):
                raise
            except Exception as error:  # compilers raise whatever they like, for each new shape
                log.warning("layers are not compiled any more, which may be slower: %s", f"{error}"[:300])
                self.use(None)
                on_failure()
                return plain(*tensors)

        return between

    def logits(self, row: InputBatch) -> Tensor:
        """Write keys and values of every token and return the logits [R, V] of the sampling rows."""
        fusion, decoder = self.fusion, self.fusion.decoder
        hidden = fusion.embed(row.token_ids).to(self.dtype)
        ropes = self._ropes(row)
        projected = before_attention(hidden, fusion.layers[0])
        for number, between in enumerate(self._between):
            attended = self._attend(number, projected, ropes, row)
            hidden, projected = between(hidden, attended, *self._weights[number : number + 2])
        last = len(fusion.layers) - 1
        hidden = after_attention(hidden, self._attend(last, projected, ropes, row), fusion.layers[last])
        logits = (
            linear_of(norm_of(hidden[row.sampling], decoder.last_norm), decoder.head) * decoder.logits_factor
        )
        return logits if decoder.softcap is None else (logits / decoder.softcap).tanh() * decoder.softcap

    def hidden(self, hidden: Tensor, row: InputBatch, number: int) -> Tensor:
        """Return what one layer makes of `hidden` [T, hidden]."""
        layer = self.fusion.layers[number]
        attended = self._attend(number, before_attention(hidden, layer), self._ropes(row), row)
        return after_attention(hidden, attended, layer)

    def _ropes(self, row: InputBatch) -> list[tuple[Tensor, ...]]:
        return [tuple(part[0] for part in rotary(row.positions[None])) for rotary in self.fusion.rotaries]

    def _attend(
        self, number: int, projected: Projected, ropes: Sequence[tuple[Tensor, ...]], row: InputBatch
    ) -> Tensor:
        """Turn and store what a layer projected, and attend."""
        layer, pool = self.fusion.layers[number], self._pools[number]
        step = row.groups[pool.group]
        query, key, value = projected
        if layer.rope is None:
            store_kv(key, value, pool.keys, pool.values, step.slots)
        else:
            cosines, sines = ropes[layer.rope]
            places = RopeStore(
                cosines=cosines, sines=sines, k_pool=pool.keys, v_pool=pool.values, slots=step.slots
            )
            query = rope_store(query, key, value, places)
        return paged_attention(query, pool.keys, pool.values, layer.heads.args(step.spans, step.prepared))


def _between(
    layer: DecoderLayer, following: DecoderLayer, hidden: Tensor, attended: Tensor, *weights: LayerWeights
) -> tuple[Tensor, Projected]:
    """Return what a layer makes of what it attended to, and what the next one projects that to.

    Args:
        layer, following: what is computed; with the weights of others.
    """
    hidden = after_attention(hidden, attended, with_weights(layer, weights[0]))
    return hidden, before_attention(hidden, with_weights(following, weights[1]))
