"""State adapters: `forward` of layers that keep their state elsewhere than in the cache they are given.

Each computes what transformers' own does, with the state that kvchat's cache has, for several sequences and
any number of tokens behind it. Such a layer is known by the name of its class alone; of one that has changed
the logits are others, and the model is refused when it is loaded. Dimensions: B sequences, n tokens of each,
H heads, D head size, W width.
"""

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers.cache_utils import Cache

from kvchat.engine.models.probing.first_layers import layers_of


def adapted_forward(module: nn.Module, past: Cache) -> Callable[..., Any] | None:
    """Return a `forward` that has its state in `past`; None: the model's own has."""
    adapter = _ADAPTERS.get(type(module).__name__)
    return None if adapter is None else partial(adapter, module, past)


def has_adapters(model: nn.Module) -> bool:
    """Return whether any layer of a model gets a `forward` of ours. Pure."""
    return any(type(module).__name__ in _ADAPTERS for module in model.modules())


@contextmanager
def adapted(model: nn.Module, past: Cache) -> Iterator[None]:
    """Let all layers of a model have their states in `past` inside the context.

    Effect:
        Each layer of which it is not known gets its number as `layer_idx`, for good.
    """
    with ExitStack() as replaced:
        for number, layer in enumerate(layers_of(model)):
            modules: Iterator[Any] = layer.modules()
            for module in modules:
                forward = adapted_forward(module, past)
                if forward is not None:
                    replaced.callback(setattr, module, "forward", module.forward)
                    module.forward = forward
                    module.layer_idx = number
        yield


def _lightning_attention(
    layer: Any, past: Any, hidden_states: Tensor, *args: Any, **kwargs: Any
) -> tuple[Tensor, None]:
    """MiniMax: takes only a cache of its own, and goes on from a state token by token, not in blocks."""
    rows = layer.act_fn(layer.qkv_proj(hidden_states)).unflatten(-1, (layer.num_attention_heads, -1))
    state = past.get_recurrent_state(layer.layer_idx)  # [B, H, D, D]
    if state is None:
        state = rows.new_zeros(len(rows), rows.shape[2], layer.head_dim, layer.head_dim)
    outs = []
    for block in rows.transpose(1, 2).split(layer.block_size, dim=2):
        num_tokens = block.shape[2]
        query, key, value = block.split(layer.head_dim, dim=-1)  # [B, H, n, D]
        inside = (query @ key.mT * layer.diagonal_decay[:, :, :num_tokens, :num_tokens]) @ value
        read = (query * layer.query_decay[:, :num_tokens]) @ state + inside
        added = (key * layer.key_decay[:, -num_tokens:]).mT @ value
        state = state * torch.exp(-layer.slope_rate * num_tokens) + added
        outs.append(query @ state if num_tokens == 1 else read)  # the same, rounded as the model does
    past.update_recurrent_state(state, layer.layer_idx)
    read = layer.norm(torch.cat(outs, dim=2).transpose(1, 2).flatten(2))
    return layer.out_proj(torch.sigmoid(layer.output_gate(hidden_states)) * read), None


def _recurrent_gemma(
    layer: Any, past: Any, input_states: Tensor, position_ids: Tensor, *args: Any, **kwargs: Any
) -> tuple[Tensor, None]:
    """RecurrentGemma: keeps its state in its modules, and its convolution sees no past of several tokens."""
    rows = layer.linear_x(input_states).mT  # [B, W, n]
    whole = past.update_conv_state(rows, layer.layer_idx, conv_kernel_size=layer.conv1d_width - 1)
    convolved = layer.conv_1d(whole)[..., whole.shape[-1] - rows.shape[-1] : whole.shape[-1]].mT
    layer.rg_lru.recurrent_states = past.get_recurrent_state(layer.layer_idx)
    read = layer.rg_lru(convolved, position_ids)
    past.update_recurrent_state(layer.rg_lru.recurrent_states, layer.layer_idx)
    layer.rg_lru.recurrent_states = None
    return layer.linear_out(read * layer.act_fn(layer.linear_y(input_states))), None


def _xlstm(layer: Any, past: Any, x: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, None]:
    """xLSTM: the model has the states of its layers, and rounds them to its dtype behind each pass."""
    before = [past.get_recurrent_state(layer.layer_idx, number) for number in range(3)]
    if before[0] is None:
        config = layer.config
        sizes = (config.qk_head_dim, config.v_head_dim), (config.qk_head_dim,), (1,)
        before = [x.new_zeros(len(x), config.num_heads, *size) for size in sizes]
    out, states = type(layer).forward(layer, x, before)
    for number, state in enumerate(states):
        past.update_recurrent_state(state.to(x.dtype), layer.layer_idx, number)
    return out, None


def _rwkv_attention(layer: Any, past: Any, hidden: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, None]:
    """RWKV: the model has the states of its layers, and decodes several sequences wrongly."""
    before = _before(layer, past, hidden)
    mixes = layer.time_mix_key, layer.time_mix_value, layer.time_mix_receptance
    rows = [hidden * mix + before * (1 - mix) for mix in mixes]
    state = [past.get_recurrent_state(layer.layer_idx, number) for number in range(3)]
    out, state = sys.modules[type(layer).__module__].rwkv_linear_attention(
        layer.time_decay,
        layer.time_first,
        layer.key(rows[0]),
        layer.value(rows[1]),
        state=None if state[0] is None else state,
        return_state=True,
    )
    for number, tensor in enumerate(state):
        past.update_recurrent_state(tensor, layer.layer_idx, number)
    return layer.output(torch.sigmoid(layer.receptance(rows[2])) * out), None


def _rwkv_feed_forward(
    layer: Any, past: Any, hidden: Tensor, *args: Any, **kwargs: Any
) -> tuple[Tensor, None]:
    before = _before(layer, past, hidden, number=1)
    mixes = layer.time_mix_key, layer.time_mix_receptance
    key, receptance = (hidden * mix + before * (1 - mix) for mix in mixes)
    value = layer.value(torch.relu(layer.key(key)).square())
    return torch.sigmoid(layer.receptance(receptance)) * value, None


def _before(layer: Any, past: Any, hidden: Tensor, number: int = 0) -> Tensor:
    """Return what came before each token [B, n, W]: at the beginning zeros."""
    whole = past.update_conv_state(hidden.mT, layer.layer_idx, number, conv_kernel_size=1).mT
    return functional.pad(whole, (0, 0, 1, 0))[:, -1 - hidden.shape[1] : -1]


_ADAPTERS: Mapping[str, Callable[..., Any]] = {
    "MiniMaxLightningAttention": _lightning_attention,
    "RecurrentGemmaRecurrentBlock": _recurrent_gemma,
    "RwkvFeedForward": _rwkv_feed_forward,
    "RwkvSelfAttention": _rwkv_attention,
    "xLSTMLayer": _xlstm,
}
