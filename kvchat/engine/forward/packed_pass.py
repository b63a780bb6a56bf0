"""A forward pass through the model's own modules over all sequences of a step, packed in one row."""

from typing import Any

import torch
from torch import Tensor, nn

from kvchat.engine.formats.format_table import PagedAttention
from kvchat.engine.forward.runner import InputBatch
from kvchat.engine.models.cache_stand_ins import PackedPast
from kvchat.engine.models.hook import accepted_arguments, attach, past_argument


class PackedPass:
    """One pass over the whole row, for models whose attention is ours.

    Args:
        past: answers layers that ask how long their past is, or for their state; None where no layer does.
    """

    def __init__(self, module: nn.Module, attention: PagedAttention, past: PackedPast | None = None) -> None:
        self.device = next(module.parameters()).device
        self._module = module
        self._attention = attention
        self._past = past
        self.follows_from_tensors = past is None
        """Whether what is computed follows from the tensors of a row alone, so that it can be recorded."""
        self._accepted = accepted_arguments(module)
        attach(module, attention, past)

    def logits(self, row: InputBatch) -> Tensor:
        self._attention.step = row.groups
        # Layers get the cache either way; if it were to be used, some models would take only their own.
        arguments: dict[str, Any] = {"use_cache": False}
        if "logits_to_keep" in self._accepted:
            arguments["logits_to_keep"] = row.sampling
        if "position_ids" in self._accepted:
            arguments["position_ids"] = row.positions[None]
        if self._past is not None:
            self._past.begin(row.positions, row.groups)
            arguments[past_argument(self._accepted)] = self._past
        try:
            logits = torch.as_tensor(self._module(input_ids=row.token_ids[None], **arguments).logits[0])
        finally:
            if self._past is not None:
                self._past.end()
        return logits if "logits_to_keep" in arguments else logits[row.sampling]
