"""Append-only rows in pages that sequences share copy-on-write, and how many bytes all of them hold."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from kvchat.engine.formats.shadow.settings import PAGE_ROWS


@dataclass(slots=True)
class Held:
    """Bytes of all shadows together, those of shared pages once."""

    num_bytes: int = 0


class RowPage:
    """Rows [capacity, ...] of which the first `num_rows` are written, by a sequence that holds it alone."""

    def __init__(self, capacity: int, like: Tensor, held: Held) -> None:
        self.data = torch.empty(capacity, *like.shape[1:], dtype=like.dtype, device=like.device)
        self._held = held
        held.num_bytes += self.num_bytes
        self.num_rows = 0
        self.num_holders = 1

    @property
    def num_bytes(self) -> int:
        return self.data.untyped_storage().nbytes()

    @property
    def room(self) -> int:
        return len(self.data) - self.num_rows

    def write(self, rows: Tensor) -> None:
        assert self.num_holders == 1
        self.data[self.num_rows : self.num_rows + len(rows)] = rows
        self.num_rows += len(rows)

    def share(self) -> "RowPage":
        self.num_holders += 1
        return self

    def release(self) -> None:
        self.num_holders -= 1
        if not self.num_holders:
            self._held.num_bytes -= self.num_bytes


class Rows:
    """Rows of one shape, in order, one behind the other.

    Args:
        shape: of one row.
        page_rows: how many a page holds at least; what is added at once lies in one page.
    """

    def __init__(
        self, shape: Sequence[int], dtype: torch.dtype, held: Held, page_rows: int = PAGE_ROWS
    ) -> None:
        self._page_rows = page_rows
        self._like = torch.empty(0, *shape, dtype=dtype)
        self._held = held
        self._pages: list[RowPage] = []

    def __len__(self) -> int:
        return sum(page.num_rows for page in self._pages)

    @property
    def pages(self) -> list[RowPage]:
        return list(self._pages)

    def append(self, rows: Tensor) -> None:
        """Add rows [n, ...], rounded to the type that is kept."""
        room = self._pages[-1].room if self._pages else 0
        fitting, rest = rows[:room], rows[room:]
        if len(fitting):
            self._writable_page().write(fitting.to(self._like.dtype))
        if len(rest):
            page = RowPage(max(self._page_rows, len(rest)), self._like.to(rows.device), self._held)
            self._pages.append(page)
            page.write(rest.to(self._like.dtype))

    def _writable_page(self) -> RowPage:
        """Return the last page, a copy of it where another sequence holds it too."""
        last = self._pages[-1]
        if last.num_holders > 1:
            own = RowPage(len(last.data), last.data, self._held)
            own.write(last.data[: last.num_rows])
            last.release()
            self._pages[-1] = own
        return self._pages[-1]

    def all(self) -> Tensor:
        """Return all rows [n, ...]: a view where they lie in one page."""
        parts = [page.data[: page.num_rows] for page in self._pages] or [self._like]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def parts(self, start: int, end: int) -> Iterator[Tensor]:
        """Yield the rows [start, end) as views, page by page."""
        first = 0
        for page in self._pages:
            part = page.data[max(0, start - first) : max(0, min(page.num_rows, end - first))]
            if len(part):
                yield part
            first += page.num_rows

    def emptied(self) -> "Rows":
        """Return rows of the same kind, without any."""
        return Rows(self._like.shape[1:], self._like.dtype, self._held, self._page_rows)

    def fork(self) -> "Rows":
        """Return the same rows for another sequence; no byte is copied."""
        other = self.emptied()
        other._pages = [page.share() for page in self._pages]
        return other

    def release(self) -> None:
        for page in self._pages:
            page.release()
        self._pages = []
