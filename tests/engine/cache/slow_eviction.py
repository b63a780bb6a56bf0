"""Eviction as lists that are searched from the front: slow, and right at a glance."""

from collections.abc import Iterable
from dataclasses import dataclass, field

Path = tuple[int, ...]
"""A block, named by the way to it from the root; its parent is the path without the last step."""


@dataclass(slots=True)
class SlowPool:
    """Blocks of one pool, of which all but the last few steps are spelt out by scanning lists.

    Args:
        num_blocks: how many may be there at once.
        scan_resistant: S3-FIFO; else the least recently used goes first.
    """

    num_blocks: int
    scan_resistant: bool
    holders: dict[Path, int] = field(default_factory=dict)
    small: list[Path] = field(default_factory=list)
    main: list[Path] = field(default_factory=list)
    aside: list[Path] = field(default_factory=list)
    """Blocks whose turn came while they had children, in that order."""
    ghosts: list[Path] = field(default_factory=list)
    uses: dict[Path, int] = field(default_factory=dict)
    proven: set[Path] = field(default_factory=set)

    def make(self, path: Path) -> Path | None:
        """Hold a new block; return the one that had to go."""
        gone = self.victim() if len(self.holders) == self.num_blocks else None
        if gone is not None:
            self.forget(gone)
        self.holders[path] = 1
        return gone

    def hold(self, path: Path) -> None:
        self.leave_queues(path)
        self.holders[path] += 1

    def drop(self, path: Path) -> None:
        self.holders[path] -= 1
        if self.holders[path]:
            return
        if not self.scan_resistant:
            self.main.append(path)
        elif path in self.ghosts or path in self.proven:
            self.ghosts = [ghost for ghost in self.ghosts if ghost != path]
            self.proven.add(path)
            self.main.append(path)
        elif not self.spare(path):
            self.small.append(path)

    def touch(self, path: Path) -> None:
        self.uses[path] = min(3, self.uses.get(path, 0) + 1)

    def forget(self, path: Path) -> None:
        self.leave_queues(path)
        del self.holders[path]
        self.uses.pop(path, None)
        self.proven.discard(path)
        parent = path[:-1]
        if parent in self.aside and self.is_leaf(parent):
            self.aside.remove(parent)
            queue = self.small if parent in self.small else self.main
            queue.remove(parent)
            queue.insert(0, parent)

    def victim(self) -> Path:
        while True:
            small_is_due = len(self.small) * 10 >= len(self.small) + len(self.main)
            order = [self.small, self.main, self.small] if small_is_due else [self.main, self.small]
            path = next((leaf for queue in order if (leaf := self.first_leaf(queue)) is not None), None)
            if path is None:
                return next(inner for queue in order for inner in self.aside if inner in queue)
            if not self.scan_resistant:
                return path
            self.leave_queues(path)
            if self.spare(path):
                continue
            if path not in self.proven:
                self.ghosts = [*self.ghosts, path][-(self.num_blocks - self.num_blocks // 10) :]
            return path

    def spare(self, path: Path) -> bool:
        if not self.uses.get(path, 0):
            return False
        self.uses[path] -= 1
        self.proven.add(path)
        self.main.append(path)
        return True

    def first_leaf(self, queue: Iterable[Path]) -> Path | None:
        for path in queue:
            if path in self.aside:
                continue
            if self.is_leaf(path):
                return path
            self.aside.append(path)
        return None

    def is_leaf(self, path: Path) -> bool:
        return not any(other[:-1] == path for other in self.holders)

    def leave_queues(self, path: Path) -> None:
        for queue in (self.small, self.main, self.aside):
            if path in queue:
                queue.remove(path)
