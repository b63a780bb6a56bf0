"""Append-only rows in pages that sequences share copy-on-write, and the budgets that limit them."""

from collections.abc import Iterator, Sequence
from math import prod

import torch
from torch import Tensor

from kvchat.engine.formats.shadow.settings import PAGE_ROWS as PAGE_ROWS
from kvchat.errors import OutOfMemory

MIB = 2**20


class Budget:
    """Bytes that may be held in one place.

    Args:
        place: what a message calls it.
        num_bytes: None for no limit.
    """

    def __init__(self, place: str, num_bytes: int | None = None) -> None:
        self.place = place
        self.num_bytes = num_bytes
        self.used_bytes = 0

    def claim(self, num_bytes: int) -> None:
        """Take bytes.

        Raises:
            OutOfMemory: fewer are left; none is taken.
        """
        if self.num_bytes is not None and self.used_bytes + num_bytes > self.num_bytes:
            raise OutOfMemory(
                f"a shadow needs {num_bytes / MIB:,.1f} MiB of {self.place} memory, and "
                f"{(self.num_bytes - self.used_bytes) / MIB:,.1f} of {self.num_bytes / MIB:,.1f} are left: "
                "allow more, or keep a shorter context"
            )
        self.used_bytes += num_bytes

    def give_back(self, num_bytes: int) -> None:
        self.used_bytes -= num_bytes
        assert self.used_bytes >= 0


class RowPage:
    """Rows [capacity, ...] of which the first `num_rows` are written, by a sequence that holds it alone."""

    def __init__(self, capacity: int, like: Tensor, budget: Budget) -> None:
        budget.claim(capacity * prod(like.shape[1:]) * like.element_size())
        self._budget = budget
        try:
            self.data = torch.empty(capacity, *like.shape[1:], dtype=like.dtype, device=like.device)
        except BaseException:
            budget.give_back(capacity * prod(like.shape[1:]) * like.element_size())
            raise
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
            self._budget.give_back(self.num_bytes)


class Rows:
    """Rows of one shape, in order, one behind the other.

    Args:
        shape: of one row.
        page_rows: how many a page holds at least; what is added at once lies in one page.
    """

    def __init__(
        self, shape: Sequence[int], dtype: torch.dtype, budget: Budget, page_rows: int = PAGE_ROWS
    ) -> None:
        self._page_rows = page_rows
        self._like = torch.empty(0, *shape, dtype=dtype)
        self._budget = budget
        self._pages: list[RowPage] = []

    def __len__(self) -> int:
        return sum(page.num_rows for page in self._pages)

    @property
    def pages(self) -> list[RowPage]:
        return list(self._pages)

    def append(self, rows: Tensor) -> None:
        """Add rows [n, ...], rounded to the type that is kept.

        Raises:
            OutOfMemory: the budget has no room; nothing is added.
        """
        room = self._pages[-1].room if self._pages else 0
        fitting, rest = rows[:room], rows[room:]
        last = self._writable_page() if len(fitting) else None
        # Claimed before anything is written, so that a refusal leaves all as it was.
        page = (
            RowPage(max(self._page_rows, len(rest)), self._like.to(rows.device), self._budget)
            if len(rest)
            else None
        )
        if last is not None:
            last.write(fitting.to(self._like.dtype))
        if page is not None:
            self._pages.append(page)
            page.write(rest.to(self._like.dtype))

    def truncate(self, num_rows: int) -> None:
        """Take back the rows behind the first `num_rows`, which no other sequence has."""
        while (excess := len(self) - num_rows) > 0:
            last = self._pages[-1]
            assert last.num_holders == 1
            last.num_rows -= min(excess, last.num_rows)
            if not last.num_rows:
                self._pages.pop().release()

    def _writable_page(self) -> RowPage:
        """Return the last page, a copy of it where another sequence holds it too."""
        last = self._pages[-1]
        if last.num_holders > 1:
            own = RowPage(len(last.data), last.data, self._budget)
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

    def take(self, numbers: Tensor) -> Tensor:
        """Return the rows `numbers` [m] → [m, ...]."""
        if len(self._pages) == 1:
            return self._pages[0].data[numbers]
        assert not len(numbers) or int(numbers.max()) < len(self)
        out = torch.empty(len(numbers), *self._like.shape[1:], dtype=self._like.dtype, device=numbers.device)
        start = 0
        for page in self._pages:
            here = (numbers >= start) & (numbers < start + page.num_rows)
            if here.any():
                out[here] = page.data[numbers[here] - start]
            start += page.num_rows
        return out

    def emptied(self) -> "Rows":
        """Return rows of the same kind, without any."""
        return Rows(self._like.shape[1:], self._like.dtype, self._budget, self._page_rows)

    def fork(self) -> "Rows":
        """Return the same rows for another sequence; no byte is copied."""
        other = self.emptied()
        other._pages = [page.share() for page in self._pages]
        return other

    def release(self) -> None:
        for page in self._pages:
            page.release()
        self._pages = []
