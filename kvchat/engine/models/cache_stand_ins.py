"""Cache stand-ins of a hooked model: they store nothing, and the one of a probe records every call.

Keys and values lie in kvchat's pools, so these caches hand new ones straight back. A few models ask their
cache something else; which of it can be answered, and which means that the model keeps a state, is decided
here.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from math import lcm
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from transformers.cache_utils import Cache

from kvchat.engine.api.ids import GroupId
from kvchat.engine.formats.attention_metadata import AttentionMetadata
from kvchat.engine.formats.recurrent.spec import StateSpec, StateTensor, state_spec
from kvchat.engine.memory.device_pool import DTYPE_NAMES

PIECE = 64
"""Tokens that layers without a chunk length of their own compute together."""
Name = tuple[int, str, int]
"""A tensor of a state: its layer, its kind, its number."""


class StandIn(Cache):
    """A cache without layers of its own."""

    rnn_state: Mapping[int, None] = defaultdict(lambda: None)
    """Where xLSTM looks for the states of each layer before it calls it."""

    def __init__(self) -> None:
        super().__init__(layers=[])
        self.updated_layer = 0
        """The layer that has given keys and values last: it attends next."""


class PackedPast(StandIn):
    """For models that ask how long the past of a layer is: each token of the packed row has its own answer.

    `position = row + past length` holds for every token, which is what such a model computes from it.
    """

    def __init__(self) -> None:
        super().__init__()
        self._past_lens = torch.zeros(1, dtype=torch.long)

    def begin(self, positions: Tensor, groups: Mapping[GroupId, AttentionMetadata]) -> None:
        """Take the positions [T] of the row that is computed next, and what is told of it in each group."""
        self._past_lens = positions - torch.arange(positions.numel(), device=positions.device)

    def end(self) -> None:
        """Note that the row is computed."""

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        self.updated_layer = layer_idx
        return key_states, value_states

    def get_seq_length(self, layer_idx: int = 0) -> Any:
        return self._past_lens


class KeepsState(Exception):
    """The model asked its cache for something that is not kept."""


class _NoLayers(list[Any]):
    def __getitem__(self, index: Any) -> NoReturn:
        raise KeepsState("something in the layers of its own cache")


class ProbePast(StandIn):
    """Claims that `start` tokens have gone before, and notes what the model asks, and what its layers keep.

    Args:
        start: the claimed length of the past; masks are built for it.
    """

    def __init__(self, start: int) -> None:
        super().__init__()
        self.layers = _NoLayers()
        self.start = start
        self.asked_past_len = False
        self.updates: dict[int, tuple[Tensor, Tensor]] = {}
        self.states: dict[Name, Tensor] = {}
        """As given, or of a convolution as it is to be kept."""
        self.keepers: list[nn.Module] = []
        """Modules that have given a state: the innermost that was running."""
        self._running: list[nn.Module] = []

    @contextmanager
    def watching(self, model: nn.Module) -> Iterator[None]:
        """Know which module runs inside the context."""
        hooks = []
        for module in model.modules():
            hooks.append(module.register_forward_pre_hook(lambda one, _: self._running.append(one)))
            hooks.append(module.register_forward_hook(self._leave))
        try:
            yield
        finally:
            self._running.clear()
            for hook in hooks:
                hook.remove()

    def _leave(self, *_: object) -> None:
        """Note that a module is through; a hook that returns something replaces what it returns."""
        self._running.pop()

    def _note(self, name: Name, tensor: Tensor) -> None:
        self.states[name] = tensor
        if not any(self._running[-1] is keeper for keeper in self.keepers):
            self.keepers.append(self._running[-1])

    def state_specs(self) -> dict[int, StateSpec]:
        """Return what each layer keeps besides keys and values."""
        kept: dict[int, list[StateTensor]] = {}
        for (layer, kind, number), tensor in sorted(self.states.items(), key=lambda one: one[0]):
            shape = tuple(tensor.shape[1:])
            kept.setdefault(layer, []).append(StateTensor(kind, number, DTYPE_NAMES[tensor.dtype], shape))
        piece = lcm(PIECE, *(_chunk_len(keeper) for keeper in self.keepers))
        return {layer: state_spec(tensors, piece) for layer, tensors in kept.items()}

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        self.updated_layer = layer_idx
        self.updates[layer_idx] = (key_states, value_states)
        return key_states, value_states

    def get_seq_length(self, layer_idx: int | None = None) -> int:
        # Models ask for the whole cache's length only to make up positions, which they are given; a layer
        # that asks computes with the answer.
        self.asked_past_len |= layer_idx is not None
        return self.start

    def get_query_offset(self, layer_idx: int = 0) -> int:
        return self.start

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        return self.start + query_length, 0

    def has_previous_state(self, layer_idx: int | None = None, state_idx: int | None = None) -> bool:
        return False

    def get_conv_state(self, layer_idx: int, state_idx: int = 0) -> None:
        return None

    def get_recurrent_state(self, layer_idx: int, state_idx: int = 0) -> None:
        return None

    def update_conv_state(
        self,
        conv_states: Tensor,
        layer_idx: int,
        state_idx: int = 0,
        conv_kernel_size: int | None = None,
        **kwargs: Any,
    ) -> Tensor:
        size = conv_kernel_size or conv_states.shape[-1]
        whole = nn.functional.pad(conv_states, (max(0, size - conv_states.shape[-1]), 0))
        self._note((layer_idx, "conv", state_idx), whole[..., -size:])
        return whole

    def update_recurrent_state(
        self, recurrent_states: Tensor, layer_idx: int, state_idx: int = 0, **kwargs: Any
    ) -> Tensor:
        self._note((layer_idx, "rec", state_idx), recurrent_states)
        return recurrent_states

    def is_recording_past(self, layer_idx: int) -> bool:
        return False

    def update_indexer(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise KeepsState("the keys of an index that selects tokens")


def _chunk_len(keeper: nn.Module) -> int:
    """Return how many tokens a layer computes together by itself."""
    length = getattr(keeper, "chunk_size", getattr(keeper, "block_size", 1))
    return length if isinstance(length, int) and length > 0 else 1
