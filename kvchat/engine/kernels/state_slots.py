"""Slots of recurrent states: those that a kernel reads, and those that it writes."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class StateSlots:
    """States of B sequences before and behind their tokens.

    Args:
        states: float32 [N, ...], each without gaps.
        reads: slots before the tokens, int64 [B] without gaps; None: all of those states are zero.
        writes: slots behind them, the same; none of them is read.
    """

    states: Tensor
    reads: Tensor | None
    writes: Tensor

    def __post_init__(self) -> None:
        for slots in (self.reads, self.writes):
            assert slots is None or (slots.dtype == torch.int64 and slots.is_contiguous())

    def before(self) -> Tensor | None:
        """Return a copy of the states before the tokens [B, ...]; None: all are zero."""
        return None if self.reads is None else self.states[self.reads]
