"""Converts stored blocks from the exact format to another one: read, quantized, written under other names.

Nothing is computed: a converted block holds the exact block's numbers in fewer bits. Its names are those of
another fingerprint and of a namespace of its own, never those of blocks that were computed in the format.
What is converted of a session is planned first, then all of it, or nothing; paths share their beginnings,
whose blocks are read, quantized, written and counted once. Dimensions: P block size.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from kvchat.engine.api.cache_format import EXACT, parse_cache_format
from kvchat.engine.api.config import EngineConfig
from kvchat.engine.api.ids import BlockId, BlockKey, GroupId, block_key
from kvchat.engine.formats.format_table import codec_of
from kvchat.engine.formats.spec import Group
from kvchat.engine.memory.device_pool import DevicePool
from kvchat.engine.memory.disk.store import BlockHeader, DiskStore
from kvchat.engine.models.load import choose_device
from kvchat.engine.models.weights_setting import WeightSource
from kvchat.engine.startup.weights import Candidate, fingerprint_of, groups_in, load_candidate
from kvchat.errors import CacheError, ConfigError, StorageError

RUN_LEN = 16
"""Blocks that are converted at one time."""

Payloads = Mapping[GroupId, bytes]
_NewBlock = tuple[BlockHeader, bytes]


@dataclass(frozen=True, slots=True)
class ConversionSide:
    """A format with room for a few blocks of each group."""

    groups: tuple[Group, ...]
    pool: DevicePool
    fingerprint: bytes


def _side_of(candidate: Candidate, config: EngineConfig) -> ConversionSide:
    groups = groups_in(candidate.served, config.cache_format, config.block_size)
    places = {group.id: RUN_LEN for group in groups}
    pool = DevicePool(groups, places, config.block_size, torch.device("cpu"))
    served = replace(candidate.served, groups=groups)
    return ConversionSide(groups, pool, fingerprint_of(replace(candidate, served=served), config, pool))


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
        if any(group.is_state for group in candidate.served.groups):
            raise ConfigError("the cache of a model with recurrent layers cannot be converted yet")
        self._size = config.block_size
        self.exact = _side_of(candidate, replace(config, cache_format=EXACT))
        self.target = _side_of(candidate, replace(config, cache_format=cache_format))

    def convert(self, blocks: Sequence[Payloads], wanted: Callable[[GroupId, int], bool]) -> list[Payloads]:
        """Return the bytes of up to `RUN_LEN` blocks in the other format, of those groups that are wanted.

        Args:
            wanted: (group, number among `blocks`) -> whether its bytes are asked for.

        Effect: this process computes with one thread meanwhile.
        """
        assert len(blocks) <= RUN_LEN
        for place, payloads in enumerate(blocks):
            for group, payload in payloads.items():
                self.exact.pool.write_block(group, BlockId(place), bytearray(payload))
        places = torch.arange(len(blocks))
        with _one_thread():
            for layer, pool in self.target.pool.layers.items():
                numbers = self.exact.pool.layers[layer]
                codec_of(pool.spec).copy_blocks(pool, numbers, places, places)
                if pool.derived is not None:
                    codec_of(pool.derived.spec).copy_blocks(pool.derived, numbers, places, places)
        return [
            {
                group.id: bytes(self.target.pool.read_block(group.id, BlockId(place), self._size))
                for group in self.target.groups
                if wanted(group.id, place)
            }
            for place in range(len(blocks))
        ]

    def sources(self, group: GroupId) -> set[GroupId]:
        """Return the exact groups that have what a converted group is made of. Pure."""
        (layers,) = (one.layers for one in self.target.groups if one.id == group)
        return {self.exact.pool.layers[layer].group for layer in layers}


@contextmanager
def _one_thread() -> Iterator[None]:
    """Let one thread compute. There are a few MiB for each layer: on a busy machine threads that wait for
    each other take many times as long as one.
    """
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(num_threads)


def load_exact(
    model_dir: Path, config: EngineConfig, report: Callable[[str], None] = lambda _: None
) -> Candidate:
    """Load a model for the exact format.

    Raises:
        ModelError, CapacityError: it cannot be loaded.
    """
    source = WeightSource(model_dir=model_dir, adapter_dir=config.adapter)
    config = replace(config, cache_format=EXACT)
    return load_candidate(source, config, choose_device(config.device), report)


@dataclass(frozen=True, slots=True, kw_only=True)
class Converted:
    """What became of a session's blocks, each counted once.

    Args:
        num_tokens: that converted blocks hold.
        exact_bytes: of the exact blocks that these came from.
        num_bytes: of the converted blocks.
        freed_bytes: of exact blocks that nothing uses any more, and that are gone.
    """

    num_tokens: int = 0
    exact_bytes: int = 0
    num_bytes: int = 0
    freed_bytes: int = 0


@dataclass(slots=True, kw_only=True)
class _Block:
    """A stored block of a path, which is to be converted.

    Args:
        exact_parent, parent: names of the block before it, as an exact block and as a converted one.
        stored: the groups that have it.
        groups: those in which it will be; grows with every path that it is on.
    """

    token_ids: tuple[int, ...]
    exact_parent: BlockKey
    parent: BlockKey
    stored: frozenset[GroupId]
    groups: set[GroupId] = field(default_factory=set)


class Conversion:
    """What is stored of some paths, up to where a conversation could go on from it.

    Args:
        source, target: where exact blocks are, and where converted ones go.
        roots: of the exact blocks' names, and of the converted ones'; no block has the latter yet.
        paths: token ids.
    """

    def __init__(
        self,
        converter: Converter,
        source: DiskStore,
        target: DiskStore,
        roots: tuple[BlockKey, BlockKey],
        paths: Iterable[Sequence[int]],
    ) -> None:
        self._converter = converter
        self._source = source
        self._target = target
        self._size = source.block_size
        self._blocks: dict[BlockKey, _Block] = {}
        """By their names as converted ones."""
        for path in paths:
            self._plan(self._whole(list(self._stored(path, *roots))))

    @property
    def planned(self) -> Converted:
        """What there will be once all is converted. Pure."""
        blocks = self._blocks.values()
        return Converted(
            num_tokens=sum(len(block.token_ids) for block in blocks),
            exact_bytes=sum(_bytes(self._source, block.stored) for block in blocks),
            num_bytes=sum(_bytes(self._target, block.groups) for block in blocks),
        )

    def run(self, report: Callable[[str], None] = lambda _: None) -> Converted:
        """Write every planned block; where one cannot be read or written, none of them is left.

        Raises:
            CacheError: an exact block is gone or damaged.
            StorageError: there is no room for them beside the exact ones, said before anything is read or
                goes; or the disk refuses.
        """
        keys = [block_key(block.exact_parent, block.token_ids) for block in self._blocks.values()]
        with self._target.room_for(self._headers(), self._source.fingerprint, keys):
            try:
                self._convert(report)
                if not all(
                    block.groups <= set(self._target.groups_of(key)) for key, block in self._blocks.items()
                ):
                    raise CacheError(
                        "converted blocks were removed while others were written, as `kvchat cache gc` does;"
                        " nothing was changed: convert again"
                    )
            except BaseException:
                self.undo()
                raise
        return self.planned

    def undo(self) -> None:
        """Remove what was written."""
        with suppress(StorageError):  # then it is garbage
            self._target.remove_keys(self._blocks)

    def _headers(self) -> Iterator[BlockHeader]:
        for block in self._blocks.values():
            for group in sorted(block.groups):
                yield BlockHeader.of(group, block.parent, block.token_ids)

    def _convert(self, report: Callable[[str], None]) -> None:
        """Convert run by run; each is written while the next one is read and quantized."""
        blocks = list(self._blocks.values())
        with ThreadPoolExecutor(1) as writer:
            written: Future[None] | None = None
            for first in range(0, len(blocks), RUN_LEN):
                report(f"converting · {first} of {len(blocks)} blocks …")
                due = self._converted(blocks[first : first + RUN_LEN])
                if written is not None:
                    written.result()
                written = writer.submit(self._write, due)
            if written is not None:
                written.result()

    def _converted(self, run: Sequence[_Block]) -> list[_NewBlock]:
        payloads = [self._read(block) for block in run]
        converted = self._converter.convert(payloads, lambda group, place: group in run[place].groups)
        return [
            (BlockHeader.of(group, block.parent, block.token_ids), bytes(payload))
            for block, parts in zip(run, converted, strict=True)
            for group, payload in parts.items()
        ]

    def _write(self, due: Sequence[_NewBlock]) -> None:
        if self._target.write(due, is_wanted=True) < len(due):
            raise StorageError(
                "the disk limit has no room for converted blocks beside the exact ones; nothing was changed: "
                "give it more with KVCHAT_KV_DISK_BYTES for as long as this takes"
            )

    def _read(self, block: _Block) -> Payloads:
        payloads: dict[GroupId, bytes] = {}
        for group in set[GroupId]().union(*map(self._converter.sources, block.groups)):
            header = BlockHeader.of(group, block.exact_parent, block.token_ids)
            payload = self._source.read_if_sound(header)
            if payload is None:
                raise CacheError(
                    "an exact block of this session is damaged, or went while it was read; nothing was "
                    "changed: convert again what is left of them"
                )
            payloads[group] = payload
        return payloads

    def _plan(self, blocks: Sequence[_Block]) -> None:
        num_tokens = sum(len(block.token_ids) for block in blocks)
        for number, block in enumerate(blocks):
            planned = self._blocks.setdefault(block_key(block.parent, block.token_ids), block)
            planned.groups.update(
                group.id for group in self._converter.target.groups if self._holds(group, number, num_tokens)
            )

    def _stored(self, path: Sequence[int], exact_root: BlockKey, root: BlockKey) -> Iterator[_Block]:
        """Yield the stored blocks that a path begins with, the tail behind them included."""
        needed = {group.id for group in self._converter.exact.groups if group.spec.max_visible is None}
        exact_parent, parent, start = exact_root, root, 0
        while len(ids := tuple(path[start : start + self._size])) == self._size:
            key = block_key(exact_parent, ids)
            groups = frozenset(self._source.groups_of(key))
            if not needed <= groups:
                break
            yield _Block(token_ids=ids, exact_parent=exact_parent, parent=parent, stored=groups)
            exact_parent, parent, start = key, block_key(parent, ids), start + self._size
        tails = [
            _Block(token_ids=tail, exact_parent=exact_parent, parent=parent, stored=groups)
            for key, tail in self._source.tails_behind(exact_parent)
            if ids[: len(tail)] == tail and needed <= (groups := frozenset(self._source.groups_of(key)))
        ]
        if tails:
            yield max(tails, key=lambda tail: len(tail.token_ids))

    def _whole(self, blocks: list[_Block]) -> list[_Block]:
        """Return the first of these up to where layers with a window have all that they still see."""
        windows = [group for group in self._converter.exact.groups if group.spec.max_visible is not None]
        num_tokens = sum(len(block.token_ids) for block in blocks)
        for end in range(len(blocks), 0, -1):
            in_sight = (
                (group.id, number)
                for group in windows
                for number in range(group.spec.first_visible(num_tokens) // self._size, end)
            )
            if all(group in blocks[number].stored for group, number in in_sight):
                return blocks[:end]
            num_tokens -= len(blocks[end - 1].token_ids)
        return []

    def _holds(self, group: Group, number: int, num_tokens: int) -> bool:
        """Whether a conversation of so many tokens holds a block in a group."""
        if number >= group.num_blocks(num_tokens, self._size):
            return False
        return (number + 1) * self._size > group.spec.first_visible(num_tokens)


def _bytes(block_store: DiskStore, groups: Iterable[GroupId]) -> int:
    return sum(region.nbytes for group in groups for region in block_store.layouts[group])
