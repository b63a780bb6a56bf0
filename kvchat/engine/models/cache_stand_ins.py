"""Cache stand-ins of a hooked model: they store nothing and record every call.

Keys and values lie in kvchat's pools, so these caches hand new ones straight back. A few models ask their
cache something else; which of it can be answered, and which means that the model keeps a state, is decided
here.
"""

from collections import defaultdict
from collections.abc import Mapping
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from transformers.cache_utils import Cache

from kvchat.engine.api.ids import GroupId
from kvchat.engine.formats.attention_metadata import AttentionMetadata
from kvchat.engine.models.probing.state_recorder import StateRecorder


class StandIn(Cache):
    """A cache without layers of its own."""

    rnn_state: Mapping[int, None] = defaultdict(lambda: None)
    """Where xLSTM looks for the states of each layer before it calls it."""

    def __init__(self) -> None:
        super().__init__(layers=[])
        self.updated_layer = 0


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
    """Claims that `start` tokens have gone before, and notes what the model asks.

    Args:
        start: the claimed length of the past; masks are built for it.
        states: notes what layers keep besides keys and values.
    """

    def __init__(self, start: int, states: StateRecorder) -> None:
        super().__init__()
        self.layers = _NoLayers()
        self.start = start
        self._states = states
        self.asked_past_len = False
        self.updates: dict[int, tuple[Tensor, Tensor]] = {}

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
        self._states.note((layer_idx, "conv", state_idx), whole[..., -size:])
        return whole

    def update_recurrent_state(
        self, recurrent_states: Tensor, layer_idx: int, state_idx: int = 0, **kwargs: Any
    ) -> Tensor:
        self._states.note((layer_idx, "rec", state_idx), recurrent_states)
        return recurrent_states

    def is_recording_past(self, layer_idx: int) -> bool:
        return False

    def update_indexer(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise KeepsState("the keys of an index that selects tokens")
