"""Chunked layers: a query sees its own chunk of the text up to itself."""

from dataclasses import dataclass
from typing import ClassVar

from kvchat.engine.formats.spec import CacheSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkedSpec(CacheSpec):
    """A layer whose queries see themselves and what came before in their own chunk of `chunk_len` tokens."""

    kind: ClassVar[str] = "chunked"

    chunk_len: int

    @property
    def chunk(self) -> int | None:
        return self.chunk_len

    @property
    def max_visible(self) -> int | None:
        return self.chunk_len

    def first_visible(self, position: int) -> int:
        return position - position % self.chunk_len
