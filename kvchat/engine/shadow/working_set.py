"""The chosen chunks of a layer that lie on the device from one step to the next.

Dimensions: H_kv heads, k chunks that a step chooses, m that it chooses for now, M that have to be fetched
for all heads, C chunks, c tokens of a chunk, D and D_v sizes of a head.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from kvchat.engine.shadow.pages import Budget

Fetch = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""Heads [M], ascending, and a chunk of each [M] → their keys [M, c, D] and values [M, c, D_v]."""

EMPTY = -1


class WorkingSet:
    """Keys and values of up to k chunks for each head; a chunk that stays does not move.

    Args:
        keys, values: [H_kv, k, c, D] and [H_kv, k, c, D_v] for what they hold, of any content.
    """

    def __init__(self, keys: Tensor, values: Tensor, budget: Budget) -> None:
        budget.claim(keys.nbytes + values.nbytes)
        self._budget = budget
        self.keys = keys
        self.values = values
        self.slots = torch.full(keys.shape[:2], EMPTY)
        self._is_shared = False

    def hold(self, wanted: Tensor, fetch: Fetch) -> int:
        """Hold the chunks that are `wanted` [H_kv, C], of bool, m of each head, in the first m slots. In each
        head this is `exchange` of the reference.

        Returns:
            How many chunks were fetched, over all heads.
        """
        heads = torch.arange(len(wanted), device=wanted.device)[:, None]
        slots = self.slots[:, : int(wanted[0].sum())]
        stays = wanted[heads, slots.clamp_min(0)] & (slots != EMPTY)
        missing = wanted.clone()
        # Where nothing stays in a slot, its head is set by itself: as it is anyway.
        missing[heads.expand_as(slots)[stays], slots[stays]] = False
        head, chunk = missing.nonzero(as_tuple=True)
        if not len(chunk):
            return 0
        self._own()
        place = (~stays).nonzero()[:, 1]
        row = head * self.slots.shape[1] + place
        for side, fetched in zip((self.keys, self.values), fetch(head, chunk), strict=True):
            side.view(self.slots.numel(), -1).index_copy_(0, row, fetched.flatten(1))
        self.slots[head, place] = chunk
        return len(chunk)

    def forget_from(self, chunk: int) -> None:
        """Hold no chunk from `chunk` on any more: its keys are fetched again when it is wanted."""
        self.slots[self.slots >= chunk] = EMPTY

    def fork(self) -> "WorkingSet":
        """Return the same chunks for another branch: each of both copies them before it changes its own."""
        other = WorkingSet(self.keys, self.values, self._budget)
        other.slots = self.slots.clone()
        self._is_shared = other._is_shared = True
        return other

    def release(self) -> None:
        self._budget.give_back(self.keys.nbytes + self.values.nbytes)

    def _own(self) -> None:
        if self._is_shared:
            self.keys, self.values = self.keys.clone(), self.values.clone()
            self._is_shared = False
