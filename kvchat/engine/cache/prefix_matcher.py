"""Prefix matcher: finds the longest cached prefix of a prompt in any tier, to the exact token.

Full blocks are found by key. Inside the block behind them, the longest common run with any block or tail that
hangs on the same parent is reused by copying it. Every group must be able to continue there: a full group
needs all blocks, a sliding group those its window still covers, one of states the state that stands exactly
there. At least one token is left to compute.
"""

from collections import abc
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import accumulate

from kvchat.engine.api.ids import BlockId, BlockKey, GroupId, SequenceId
from kvchat.engine.cache.prefix_index import IndexNode, PrefixIndex
from kvchat.engine.cache.slow_tiers import SlowTier
from kvchat.engine.formats.spec import Group, Selection
from kvchat.engine.formats.view_schedule import EXACT, Name, ViewSchedule, kept_name
from kvchat.engine.sequences.sequence import Sequence

MOST_SIBLINGS = 16
"""In each direction. Only where all of them lack a group may a shorter run be missed: less than a block."""


@dataclass(frozen=True, slots=True)
class PartialBlock:
    """A block or tail whose first `num_tokens` tokens begin the block to be computed.

    `blocks` has the device block of each group that holds it there; the other groups load it under `key`.
    """

    key: BlockKey | None
    token_ids: tuple[int, ...]
    num_tokens: int
    blocks: dict[GroupId, BlockId]

    @property
    def is_whole(self) -> bool:
        """Whether all of it is reused: what follows makes this tail superfluous."""
        return self.num_tokens == len(self.token_ids)


@dataclass(frozen=True, slots=True)
class PrefixMatch:
    """What a prompt can reuse.

    Args:
        keys: the full blocks, first block first.
        partial: source of the tokens behind them.
        length: tokens reused in all.
        block_ids: token ids of the full blocks.
        parents: of the full blocks and of what is behind them.
        kept_names: what is left of stretches has these names, by number, in the groups that are pruned.
        view_schedule: what of them is in sight.
        state: the block or tail at whose end they end, with the states that stand there; None: there are
            no states.
        tokens_len: tokens of whole blocks that all groups but those of states have.
    """

    keys: tuple[BlockKey, ...] = ()
    block_ids: tuple[tuple[int, ...], ...] = ()
    partial: PartialBlock | None = None
    length: int = 0
    parents: tuple[BlockKey, ...] = ()
    kept_names: Mapping[int, Name] = field(default_factory=dict)
    view_schedule: ViewSchedule = EXACT
    state: IndexNode | None = None
    tokens_len: int = 0

    @property
    def all_keys(self) -> tuple[BlockKey, ...]:
        """The names of all that is matched, what is left of stretches last."""
        partial = (self.partial.key,) if self.partial and self.partial.key is not None else ()
        state = (self.state.key,) if self.state is not None else ()
        return *self.keys, *partial, *state, *(key for key, _ in self.kept_names.values())

    @property
    def comes_whole(self) -> bool:
        """Whether none of it can be computed while the rest is loaded: what was pruned, since its blocks are
        not those that the first tokens fill, and what ends in a state.
        """
        return bool(self.view_schedule.prune_points) or self.state is not None

    def key_of(self, group: Group, number: int) -> BlockKey:
        """Return the name of what a group needs of a full block. Pure."""
        kept = kept_name(group, number, self.kept_names)
        return kept[0] if kept else self.keys[number]

    def numbers(self, group: Group, block_size: int) -> list[int]:
        """Return the numbers of the full blocks that a group needs behind the matched tokens. Pure."""
        numbers = self.view_schedule.numbers(group, self.length, block_size)
        return [number for number in numbers if number < len(self.keys)]


@dataclass(slots=True)
class _Candidate:
    key: BlockKey | None
    token_ids: tuple[int, ...]
    blocks: dict[GroupId, BlockId] = field(default_factory=dict)
    stored: frozenset[GroupId] = frozenset()

    def covers(self, groups: Iterable[Group]) -> bool:
        return all(group.id in self.blocks or group.id in self.stored for group in groups)


@dataclass(frozen=True, slots=True)
class _Chain:
    """The prompt's full blocks, and which of them each group has."""

    keys: list[BlockKey]
    block_ids: list[tuple[int, ...]]
    parents: list[BlockKey]
    """Of the full blocks, and of what comes behind the last of them."""
    kept_names: dict[int, Name]
    present: dict[GroupId, list[bool]]
    runs: dict[GroupId, list[int]]
    """runs[g][n]: how many blocks directly before block n are present."""


class PrefixMatcher:
    """Matches prompts against the device index, the live tails and a slower tier. Pure."""

    def __init__(
        self,
        groups: abc.Sequence[Group],
        block_size: int,
        index: PrefixIndex,
        slow: SlowTier,
        sequences: Mapping[SequenceId, Sequence],
    ) -> None:
        """Args:
        sequences: the live ones, whose tails have no names.
        """
        self._groups = groups
        self._with_tail = [group for group in groups if group.source is None and not group.is_state]
        self._states = [group for group in groups if group.is_state]
        self._block_size = block_size
        self._index = index
        self._slow = slow
        self._sequences = sequences

    def match(self, sequence: Sequence, max_len: int | None = None) -> PrefixMatch:
        """Return the longest usable prefix of all but the last token, of at most `max_len` tokens. Pure,
        but for the names that the sequence remembers.
        """
        view_schedule, most = sequence.view_schedule, len(sequence.token_ids) - 1
        if max_len is not None:
            most = min(most, max_len)
        # What was pruned is found as a whole, with all that was computed since, or is to be pruned again.
        points = view_schedule.prune_points
        limits = [*(min(most, view_schedule.most_found(point)) for point in points), most]
        for num in range(len(points), 0, -1):
            least = points[num - 1].at
            if limits[num] >= least:
                found = self._match(sequence, view_schedule.up_to(num), limits[num])
                if found.length >= least:
                    return found
        return self._match(sequence, view_schedule.up_to(0), limits[0])

    def _match(self, sequence: Sequence, view_schedule: ViewSchedule, limit: int) -> PrefixMatch:
        """Return the longest prefix that can be used once all prune points have been passed."""
        token_ids = sequence.token_ids
        chain = self._chain(sequence, view_schedule, limit)
        partial, state = None, None
        num_leading = self._num_leading(chain)
        for num_blocks in range(num_leading, -1, -1):
            start = num_blocks * self._block_size
            rest = token_ids[start : min(start + self._block_size, limit)]
            if self._states:
                partial, state = self._best_with_state(chain, num_blocks, rest)
                if state or not num_blocks:
                    break
                continue
            partial = self._best_partial(chain, num_blocks, rest)
            if partial or self._windows_present(chain, num_blocks, 0):
                break
        length = num_blocks * self._block_size + (partial.num_tokens if partial else 0)
        return PrefixMatch(
            keys=tuple(chain.keys[:num_blocks]),
            block_ids=tuple(chain.block_ids[:num_blocks]),
            partial=partial,
            parents=tuple(chain.parents[: num_blocks + 1]),
            length=length,
            kept_names=chain.kept_names,
            view_schedule=view_schedule,
            state=state,
            tokens_len=num_leading * self._block_size if self._with_tail else 0,
        )

    def _chain(self, sequence: Sequence, view_schedule: ViewSchedule, limit: int) -> _Chain:
        size = self._block_size
        ids = [
            tuple(sequence.token_ids[start : start + size]) for start in range(0, limit // size * size, size)
        ]
        keys: list[BlockKey] = []
        parents = [view_schedule.parent(0, sequence.root, limit)]
        for number, block_ids in enumerate(ids):
            keys.append(sequence.chain.name(number, parents[-1], block_ids))
            parents.append(view_schedule.parent(number + 1, keys[-1], limit))
        kept: dict[int, Name] = {}
        for prune_point in view_schedule.prune_points:
            kept |= view_schedule.kept_names(prune_point, keys, sequence.token_ids)
        pruned_keys = [kept[number][0] if number in kept else key for number, key in enumerate(keys)]
        present: dict[GroupId, list[bool]] = {}
        for group in self._groups:
            names = pruned_keys if group.spec.selection is Selection.PRUNED else keys
            nodes = map(self._index.find, names, ids)
            blocks = [node.blocks.get(group.id) if node else None for node in nodes]
            absent = [key for key, block in zip(names, blocks, strict=True) if block is None]
            stored = iter(self._slow.has_all(absent, group.id) if absent else ())
            present[group.id] = [block is not None or next(stored) for block in blocks]
            if group.spec.selection is Selection.PRUNED:
                for first, end in view_schedule.hidden_ranges(group, limit, size):
                    present[group.id][first:end] = [True] * (end - first)
        runs = {
            group: list(accumulate(flags, lambda run, flag: run + 1 if flag else 0, initial=0))
            for group, flags in present.items()
        }
        return _Chain(keys=keys, block_ids=ids, parents=parents, kept_names=kept, present=present, runs=runs)

    def _num_leading(self, chain: _Chain) -> int:
        """Return how many blocks from the start every group without a window has, as far as it needs them."""
        leading = len(chain.keys)
        for group in self._groups:
            if group.spec.max_visible is None and not group.is_state:
                flags = chain.present[group.id]
                there = flags.index(False) if False in flags else len(flags)
                while group.num_blocks(leading * self._block_size, self._block_size) > there:
                    leading -= 1
        return leading

    def _windows_present(self, chain: _Chain, num_blocks: int, num_tokens: int) -> bool:
        """Whether every group has what the query behind `num_blocks` blocks and `num_tokens` tokens sees of
        them.
        """
        position = num_blocks * self._block_size + num_tokens
        return all(self._window_present(chain, group, num_blocks, position) for group in self._groups)

    def _window_present(self, chain: _Chain, group: Group, num_blocks: int, position: int) -> bool:
        end = min(num_blocks, group.num_blocks(position, self._block_size))
        runs = chain.runs[group.id]
        seen = group.spec.visible_blocks(position, self._block_size)
        return all(min(last, end) - first <= runs[min(last, end)] for first, last in seen)

    def _best_with_state(
        self, chain: _Chain, num_blocks: int, rest: abc.Sequence[int]
    ) -> tuple[PartialBlock | None, IndexNode | None]:
        """Return the source of the tokens behind `num_blocks` blocks up to the last state that stands among
        them, and what ends there; nothing where no state stands there that can be used.
        """
        parent, start = chain.parents[num_blocks], num_blocks * self._block_size
        candidates = list(self._candidates(parent, rest))
        for end in reversed(self._ends(candidates, parent, rest)):
            length = len(end.token_ids)
            if not self._windows_present(chain, num_blocks, length):
                continue
            for one in sorted(candidates, key=lambda one: one.key != end.key):
                if common_run(one.token_ids, rest) >= length and one.covers(self._with_tail):
                    source = PartialBlock(one.key, one.token_ids, length, one.blocks)
                    return source, IndexNode(end.key, parent, end.token_ids, start)
        if not num_blocks or not self._windows_present(chain, num_blocks, 0):
            return None, None
        if not all(chain.present[group.id][num_blocks - 1] for group in self._states):
            return None, None
        last = num_blocks - 1
        ids = chain.block_ids[last]
        return None, IndexNode(chain.keys[last], chain.parents[last], ids, last * self._block_size)

    def states_behind(self, parent: BlockKey, token_ids: abc.Sequence[int]) -> list[IndexNode]:
        """Return the blocks and tails behind `parent`, of tokens that `token_ids` begins with, at whose end
        states stand in any tier; the shortest first. Positions are not known. Pure.
        """
        return self._ends(self._candidates(parent, token_ids), parent, token_ids)

    def _ends(
        self, candidates: Iterable[_Candidate], parent: BlockKey, token_ids: abc.Sequence[int]
    ) -> list[IndexNode]:
        ends = [
            IndexNode(one.key, parent, one.token_ids, 0)
            for one in candidates
            if one.key is not None
            and one.covers(self._states)
            and one.token_ids == tuple(token_ids[: len(one.token_ids)])
        ]
        return sorted(ends, key=lambda node: len(node.token_ids))

    def _best_partial(self, chain: _Chain, num_blocks: int, rest: abc.Sequence[int]) -> PartialBlock | None:
        # The further into the block, the less of the blocks before it is seen.
        if not self._windows_present(chain, num_blocks, self._block_size - 1):
            return None
        parent = chain.parents[num_blocks]
        best: PartialBlock | None = None
        for candidate in self._candidates(parent, rest):
            common = common_run(candidate.token_ids, rest)
            if common <= (best.num_tokens if best else 0) or not candidate.covers(self._with_tail):
                continue
            if self._windows_present(chain, num_blocks, common):
                best = PartialBlock(candidate.key, candidate.token_ids, common, candidate.blocks)
        return best

    def _candidates(self, parent: BlockKey, rest: abc.Sequence[int]) -> Iterable[_Candidate]:
        """Yield the blocks and tails behind `parent` that begin most like `rest`; those that more groups have
        on the device first, so that they win ties.
        """
        if not rest:
            return
        for sequence in self._sequences.values():
            if sequence.computed_len % self._block_size and sequence.last_key == parent:
                yield self._live_candidate(sequence)
        named = {
            node.key: _Candidate(node.key, node.token_ids, dict(node.blocks))
            for node in self._index.nearest(parent, rest, MOST_SIBLINGS)
        }
        for stored in self._slow.nearest(parent, rest, MOST_SIBLINGS):
            if stored.key not in named:
                node = self._index.find(stored.key, stored.token_ids)
                blocks = dict(node.blocks) if node else {}
                named[stored.key] = _Candidate(stored.key, stored.token_ids, blocks)
            known = named[stored.key]
            if known.token_ids == stored.token_ids:
                known.stored = stored.groups
        yield from sorted(named.values(), key=lambda candidate: -len(candidate.blocks))

    def _live_candidate(self, sequence: Sequence) -> _Candidate:
        number = sequence.computed_len // self._block_size
        blocks = {
            group.id: block
            for group in self._with_tail
            if (block := sequence.tables[group.id][number]) is not None
        }
        tail_ids = tuple(sequence.token_ids[number * self._block_size : sequence.computed_len])
        return _Candidate(None, tail_ids, blocks)


def common_run(left: abc.Sequence[int], right: abc.Sequence[int]) -> int:
    """Return the length of the longest common prefix."""
    for index, (a, b) in enumerate(zip(left, right, strict=False)):
        if a != b:
            return index
    return min(len(left), len(right))
