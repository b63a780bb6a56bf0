"""Forward passes through a model's own modules: a step's sequences in one row, or one by one."""

from typing import Any

import torch
from torch import Tensor, nn

from kvchat.engine.formats.format_table import PagedAttention
from kvchat.engine.forward.runner import InputBatch
from kvchat.engine.kernels.paged_attention.args import SequenceSpan
from kvchat.engine.models.cache_stand_ins import PackedPast
from kvchat.engine.models.hook import accepted_arguments, attach, past_argument
from kvchat.engine.models.state_layers import SequenceStates


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


class SequencePass:
    """One pass for each sequence of the row, for models that attend by themselves to what a cache returns."""

    def __init__(self, module: nn.Module, cache: SequenceStates) -> None:
        self.device = next(module.parameters()).device
        self._module = module
        self._cache = cache
        self._accepted = accepted_arguments(module)

    def logits(self, row: InputBatch) -> Tensor:
        spans = next(iter(row.groups.values())).spans
        wanted = row.sampling.tolist()
        rows: list[Tensor] = []
        for number, span in enumerate(spans):
            self._cache.begin(row.groups, number)
            num_rows = sum(span.q_start <= row < span.q_end for row in wanted)
            with self._cache.part(number):
                logits = self._sequence(row, span, max(1, num_rows))
            rows += logits[len(logits) - num_rows :]
        return torch.stack(rows) if rows else logits[:0]

    def _sequence(self, row: InputBatch, span: SequenceSpan, num_rows: int) -> Tensor:
        """Compute one sequence's tokens and return the logits behind its last `num_rows` ones, or more."""
        start, end, position = span.q_start, span.q_end, span.position
        tokens = slice(start, end)
        offered = {
            "position_ids": row.positions[None, tokens],
            "attention_mask": torch.ones(1, position + end - start, dtype=torch.long, device=self.device),
            "logits_to_keep": num_rows,
        }
        arguments = {name: value for name, value in offered.items() if name in self._accepted}
        out = self._module(
            input_ids=row.token_ids[None, tokens], past_key_values=self._cache, use_cache=True, **arguments
        )
        return torch.as_tensor(out.logits[0])
