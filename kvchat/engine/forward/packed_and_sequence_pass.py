"""Forward passes of a step: all sequences packed in one, or sequence by sequence.

Dimensions: T tokens of the row, R rows whose logits are needed, V vocabulary.
"""

from typing import Any

import torch
from torch import Tensor, nn

from kvchat.engine.formats.format_table import PagedAttention
from kvchat.engine.formats.full.transformers_cache import TransformersCache
from kvchat.engine.forward.runner import InputBatch
from kvchat.engine.kernels.paged_attention.args import SequenceSpan
from kvchat.engine.models.cache_stand_ins import PackedPast
from kvchat.engine.models.hook import accepted_arguments, attach


class PackedPass:
    """One pass over the whole row, for models whose attention is ours.

    Args:
        past: answers layers that ask how long their past is; None where no layer does.
    """

    def __init__(self, module: nn.Module, attention: PagedAttention, past: PackedPast | None = None) -> None:
        self.device = next(module.parameters()).device
        self._module = module
        self._attention = attention
        self._past = past
        self.follows_from_tensors = past is None
        """Whether what is computed follows from the tensors of a row alone, so that it can be recorded."""
        attach(module, attention)

    def logits(self, row: InputBatch) -> Tensor:
        self._attention.step = row.groups
        cache: dict[str, Any] = {"use_cache": False}
        if self._past is not None:
            self._past.begin(row.positions)
            cache = {"use_cache": True, "past_key_values": self._past}
        out = self._module(
            input_ids=row.token_ids[None],
            position_ids=row.positions[None],
            logits_to_keep=row.sampling,
            **cache,
        )
        return torch.as_tensor(out.logits[0])


class SequencePass:
    """One pass for each sequence of the row, for models that attend by themselves to what a cache returns."""

    def __init__(self, module: nn.Module, cache: TransformersCache) -> None:
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
