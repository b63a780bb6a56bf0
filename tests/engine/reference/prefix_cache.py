"""A prefix cache without blocks to look after: sets of token prefixes.

The KV of a token is a function of the tokens up to it, so the prefix that ends with it names it. What is held
is recomputed from the sequences whenever somebody asks. Nothing here is fast, and nothing is kept twice.

Which unheld blocks are still there is left open: it is for the policy of eviction to say. All that follows
from the promises of the cache alone is exact, the rest has bounds.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field

Reach = Callable[[int], int]
"""Position of a query → first position that it sees in one group of layers."""


def everything(position: int) -> int:
    return 0


def window(length: int) -> Reach:
    return lambda position: max(0, position - length + 1)


def chunk(length: int) -> Reach:
    return lambda position: position // length * length


@dataclass(slots=True, eq=False)
class Line:
    """A live sequence. `tail` stands for the block of its last, incomplete tokens; forks share it."""

    token_ids: list[int]
    num_computed: int = 0
    num_writable: int = 0
    tail: object = None
    priority: int = 0
    """Of the last job that was given to it."""


@dataclass(slots=True)
class ReferenceCache:
    """Args:
    reaches: what a query sees in each group.
    sizes: blocks of each group's pool.
    """

    reaches: Sequence[Reach]
    sizes: Sequence[int]
    block_size: int
    lines: dict[int, Line] = field(default_factory=dict)
    """In the order in which they became idle, those that never ran in the order of their birth."""
    computed: set[tuple[int, ...]] = field(default_factory=set)
    """Every prefix whose last token anybody has ever computed."""
    sources: set[object] = field(default_factory=set)
    """Tails that a step in preparation still has to copy."""
    shipped: Callable[[int], set[Hashable]] = lambda _: set()
    """Blocks of a group that are held for those who wait until all they reuse is there."""

    # What must be reused

    def most_reusable(self, prompt: Sequence[int]) -> int:
        """Return how many tokens of a prompt can be known at all; the last one is computed in any case."""
        known = 0
        while known < len(prompt) - 1 and tuple(prompt[: known + 1]) in self.computed:
            known += 1
        return known

    def least_reusable(self, prompt: Sequence[int]) -> int:
        """Return how many tokens of a prompt live sequences keep for it, whatever has been evicted."""
        best = 0
        for line in self.lines.values():
            common = 0
            while common < min(line.num_computed, len(prompt) - 1) and (
                line.token_ids[common] == prompt[common]
            ):
                common += 1
            if all(
                self._first(reach, common) >= self._first(reach, line.num_computed) for reach in self.reaches
            ):
                best = max(best, common)
        return best

    # Room

    def held(self, group: int) -> set[Hashable]:
        """Return the blocks of a group that are not to be evicted: equal full blocks are one."""
        blocks: set[Hashable] = set(self.sources) | self.shipped(group)
        for number, line in self.lines.items():
            blocks |= self._full_blocks(group, line.token_ids, line.num_computed)
            if line.num_computed % self.block_size:
                blocks.add(line.tail)
            blocks |= {(number, new) for new in self._new_blocks(line.num_computed, line.num_writable)}
        return blocks

    def room(self, group: int) -> int:
        return self.sizes[group] - len(self.held(group))

    def can_admit(self, prompt: Sequence[int], known: int, num_following: int, num_sources: int) -> bool:
        """Whether a sequence may take `known` tokens of its prompt, with room for more behind them.

        `num_sources`: blocks beside its own that a copy has to read.
        """
        num_tail = 1 + num_sources if known % self.block_size else 0
        num_new = len(self._new_blocks(known, num_following)) + num_tail
        return all(
            len(self._full_blocks(group, prompt, known) - self.held(group)) + num_new <= self.room(group)
            for group in range(len(self.sizes))
        )

    def can_extend(self, line: Line, num_tokens: int) -> bool:
        """Whether a sequence's next tokens can be written. A tail that others need is copied before."""
        num_new = len(self._new_blocks(line.num_computed, num_tokens)) + self._shares_tail(line)
        return all(num_new <= self.room(group) for group in range(len(self.sizes)))

    def can_extend_further(self, line: Line, num_tokens: int) -> bool:
        """Whether of a sequence whose next token can be written so many can be."""
        blocks = self._new_blocks(line.num_computed, num_tokens)
        num_new = len(blocks) - len(self._new_blocks(line.num_computed, line.num_writable))
        return all(num_new <= self.room(group) for group in range(len(self.sizes)))

    def seen_blocks(self, group: int, num_computed: int) -> range:
        """Return the numbers of the full blocks that the token behind `num_computed` others sees."""
        return range(self._first(self.reaches[group], num_computed), num_computed // self.block_size)

    # What happens

    def admit(self, line: Line, known: int) -> None:
        line.num_computed = known
        line.tail = object()

    def extend(self, line: Line, num_tokens: int) -> None:
        if self._shares_tail(line):
            self.sources.add(line.tail)
            line.tail = object()
        line.num_writable = num_tokens

    def finish_moves(self) -> None:
        self.sources.clear()

    def compute(self, line: Line, num_tokens: int) -> None:
        """Record that so many tokens of those that could be written have been written."""
        begun = line.num_computed // self.block_size
        for _ in range(num_tokens):
            line.num_computed += 1
            self.computed.add(tuple(line.token_ids[: line.num_computed]))
        line.num_writable -= num_tokens
        if line.tail is None or line.num_computed // self.block_size > begun:
            line.tail = object()

    def fork(self, parent: int, child: int) -> None:
        line = self.lines[parent]
        tail = line.tail if line.num_computed % self.block_size else None
        self.lines[child] = Line(list(line.token_ids), line.num_computed, 0, tail, line.priority)

    def reset(self, line: Line) -> None:
        line.num_computed = line.num_writable = 0
        line.tail = None

    # Parts of the above

    def _first(self, reach: Reach, position: int) -> int:
        return reach(position) // self.block_size

    def _full_blocks(self, group: int, token_ids: Sequence[int], num_computed: int) -> set[Hashable]:
        numbers = self.seen_blocks(group, num_computed)
        return {tuple(token_ids[: (number + 1) * self.block_size]) for number in numbers}

    def _new_blocks(self, num_computed: int, num_tokens: int) -> range:
        return range(-(-num_computed // self.block_size), -(-(num_computed + num_tokens) // self.block_size))

    def _shares_tail(self, line: Line) -> bool:
        if not line.num_computed % self.block_size:
            return False
        others = [other.tail for other in self.lines.values() if other is not line and other.num_computed]
        return line.tail in self.sources or line.tail in others
