"""Converts stored blocks from the exact format to another one: read, quantised, written under other names.

Nothing is computed: a converted block holds the exact block's numbers in fewer bits. Its names are those of
another fingerprint and of a namespace of its own, never those of blocks that were computed in the format.
Dimensions: P block size.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from kvchat.engine.api.cache_format import parse_cache_format
from kvchat.engine.api.config import EngineConfig
from kvchat.engine.api.ids import BlockId, BlockKey, GroupId, block_key, from_u32le, u32le
from kvchat.engine.cache.spec import Group
from kvchat.engine.kernels.sealed_attention import seal
from kvchat.engine.kernels.sealed_attention.args import SealedStep
from kvchat.engine.memory.bundle_blocks import BlockShelf
from kvchat.engine.memory.device_pool import DevicePool
from kvchat.engine.models.load import choose_device
from kvchat.engine.replay import copy_blocks
from kvchat.engine.weight_format import Source
from kvchat.engine.weights import Candidate, fingerprint_of, groups_in, load_candidate
from kvchat.errors import ConfigError

EXACT = "exact"
RUN_LEN = 16
"""Blocks that are converted at one time."""

Payloads = Mapping[GroupId, bytes]


@dataclass(frozen=True, slots=True)
class Converted:
    """What became of one path: its first tokens, and the bytes of their blocks before and after."""

    num_tokens: int = 0
    exact_bytes: int = 0
    num_bytes: int = 0


class _Side:
    """A format with room for a few blocks of each group."""

    def __init__(self, candidate: Candidate, config: EngineConfig) -> None:
        self.groups = groups_in(candidate.served, config.cache_format, config.block_size)
        places = {group.id: RUN_LEN for group in self.groups}
        self.pool = DevicePool(self.groups, places, config.block_size, torch.device("cpu"))
        served = replace(candidate.served, groups=self.groups)
        self.fingerprint = fingerprint_of(replace(candidate, served=served), config, self.pool)


class Converter:
    """Turns blocks of the exact format into those of another one.

    Args:
        candidate: the model, loaded for the exact format.
        config: of the exact engine whose blocks are converted.
        cache_format: what they are converted to.

    Raises:
        ConfigError: the model cannot be stored in this format, or it is a view; the message says why.
    """

    def __init__(self, candidate: Candidate, config: EngineConfig, cache_format: str) -> None:
        if parse_cache_format(cache_format).view is not None:
            raise ConfigError(
                f"cache format '{cache_format}' shows a part of exact blocks, so there is nothing to "
                f"convert; ask with --cache-format {cache_format}"
            )
        self._size = config.block_size
        self.exact = _Side(candidate, replace(config, cache_format=EXACT))
        self.target = _Side(candidate, replace(config, cache_format=cache_format))

    def convert_path(
        self, path: Sequence[int], source: BlockShelf, target: BlockShelf, roots: tuple[BlockKey, BlockKey]
    ) -> Converted:
        """Convert what is stored of a path, from its beginning up to the first block that is not.

        Args:
            source, target: where exact blocks are, and where converted ones go.
            roots: of the exact blocks' names, and of the converted ones'.
        """
        blocks = self._stored(path, source, roots[0])
        num_tokens = sum(map(len, blocks))
        parent_from, parent_to = roots
        done = Converted(num_tokens=num_tokens)
        for first in range(0, len(blocks), RUN_LEN):
            run = blocks[first : first + RUN_LEN]
            parents: list[tuple[BlockKey, BlockKey]] = []
            for ids in run:
                parents.append((parent_from, parent_to))
                parent_from, parent_to = block_key(parent_from, ids), block_key(parent_to, ids)
            done = self._convert_run(done, first, run, parents, (source, target))
        return done

    def convert(self, blocks: Sequence[Payloads], wanted: Callable[[GroupId, int], bool]) -> list[Payloads]:
        """Return the bytes of up to `RUN_LEN` blocks in the other format, of those groups that are wanted.

        Args:
            wanted: (group, number among `blocks`) -> whether its bytes are asked for.
        """
        assert len(blocks) <= RUN_LEN
        for place, payloads in enumerate(blocks):
            for group, payload in payloads.items():
                self.exact.pool.write_block(group, BlockId(place), bytearray(payload))
        places = torch.arange(len(blocks))
        for layer, pool in self.target.pool.layers.items():
            numbers = self.exact.pool.layers[layer]
            copy_blocks(pool, numbers, places, places)
            if pool.sealed is not None:
                seal(numbers.keys, numbers.values, pool.sealed.pool, SealedStep((), places, places))
        return [
            {
                group.id: bytes(self.target.pool.read_block(group.id, BlockId(place), self._size))
                for group in self.target.groups
                if wanted(group.id, place)
            }
            for place in range(len(blocks))
        ]

    def _convert_run(
        self,
        done: Converted,
        first: int,
        run: Sequence[tuple[int, ...]],
        parents: Sequence[tuple[BlockKey, BlockKey]],
        shelves: tuple[BlockShelf, BlockShelf],
    ) -> Converted:
        source, target = shelves
        payloads = [self._read(source, parent, ids) for (parent, _), ids in zip(parents, run, strict=True)]

        def is_wanted(group_id: GroupId, place: int) -> bool:
            group = self._group(group_id)
            is_known = self._sources(group) <= payloads[place].keys()
            return is_known and self._holds(group, first + place, done.num_tokens)

        converted = self.convert(payloads, is_wanted)
        num_bytes = done.num_bytes
        for (_, parent), ids, parts in zip(parents, run, converted, strict=True):
            for group, payload in parts.items():
                target.write(group, parent, ids, payload)
                num_bytes += len(payload)
        exact_bytes = sum(len(payload) for parts in payloads for payload in parts.values())
        return replace(done, exact_bytes=done.exact_bytes + exact_bytes, num_bytes=num_bytes)

    def _stored(self, path: Sequence[int], source: BlockShelf, root: BlockKey) -> list[tuple[int, ...]]:
        """Return the ids of the stored blocks that a path begins with, the tail behind them included."""
        needed = {group.id for group in self.exact.groups if group.spec.max_visible is None}
        found: list[tuple[int, ...]] = []
        parent = root
        for start in range(0, len(path) - self._size + 1, self._size):
            ids = tuple(path[start : start + self._size])
            key = block_key(parent, ids)
            if not needed <= set(source.groups_of(key)):
                break
            found.append(ids)
            parent = key
        rest = path[len(found) * self._size :][: self._size]
        tail = source.longest_tail(parent, u32le(rest)) if rest else None
        return [*found, tuple(from_u32le(tail))] if tail else found

    def _read(self, source: BlockShelf, parent: BlockKey, ids: tuple[int, ...]) -> Payloads:
        """Return what is stored of a block; a group out of sight may lack it."""
        read = {group.id: source.read(group.id, parent, u32le(ids)) for group in self.exact.groups}
        return {group: payload for group, payload in read.items() if payload is not None}

    def _holds(self, group: Group, number: int, num_tokens: int) -> bool:
        """Whether a conversation of so many tokens holds a block in a group."""
        if number >= group.num_blocks(num_tokens, self._size):
            return False
        return (number + 1) * self._size > group.spec.first_visible(num_tokens)

    def _sources(self, group: Group) -> set[GroupId]:
        """Return the exact groups that have what a group is made of."""
        return {self.exact.pool.layers[layer].group for layer in group.layers}

    def _group(self, group_id: GroupId) -> Group:
        return next(group for group in self.target.groups if group.id == group_id)


def load_exact(
    model_dir: Path, config: EngineConfig, report: Callable[[str], None] = lambda _: None
) -> Candidate:
    """Load a model for the exact format.

    Raises:
        ModelError, CapacityError: it cannot be loaded.
    """
    source = Source(model_dir=model_dir, adapter_dir=config.adapter)
    config = replace(config, cache_format=EXACT)
    return load_candidate(source, config, choose_device(config.device), report)


def joined(parts: Iterable[Converted]) -> Converted:
    """Return what several paths came to; blocks of several paths count for each."""
    found = Converted()
    for part in parts:
        found = Converted(
            found.num_tokens + part.num_tokens,
            found.exact_bytes + part.exact_bytes,
            found.num_bytes + part.num_bytes,
        )
    return found
