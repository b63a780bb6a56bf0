"""Sliding layers: a query sees the last tokens; blocks leave with the window."""

from dataclasses import dataclass
from typing import ClassVar

from kvchat.engine.formats.spec import CacheSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class SlidingSpec(CacheSpec):
    """A layer whose queries see themselves and the `window_len - 1` tokens before."""

    kind: ClassVar[str] = "sliding"

    window_len: int

    @property
    def window(self) -> int | None:
        return self.window_len

    @property
    def max_visible(self) -> int | None:
        return self.window_len

    def first_visible(self, position: int) -> int:
        return max(0, position - self.window_len + 1)
