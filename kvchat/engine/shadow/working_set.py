"""The chosen chunks of a layer that lie on the device from one step to the next.

Dimensions: H_kv heads, k chunks that a step chooses, m that it chooses for now, c tokens of a chunk, D and
D_v sizes of a head.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from kvchat.engine.kernels.shadow_kv import reference
from kvchat.engine.shadow.pages import Budget

Fetch = Callable[[int, Tensor], tuple[Tensor, Tensor]]
"""A head and chunks [m] → their keys [m, c, D] and values [m, c, D_v]."""

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
        """Hold the chunks `wanted` [H_kv, m], which are different in a head, in the first m slots.

        Returns:
            How many chunks were fetched, over all heads.
        """
        num_fetched = 0
        for head, chunks in enumerate(wanted):
            change = reference.exchange(self.slots[head, : len(chunks)], chunks)
            places = change.is_missing.nonzero().flatten()
            if not len(places):
                continue
            self._own()
            missing = change.slots[places]
            self.keys[head, places], self.values[head, places] = fetch(head, missing)
            self.slots[head, : len(chunks)] = change.slots
            num_fetched += len(places)
        return num_fetched

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
