"""Holds stored KV to what the model computes: block by block, and by the logits that follow from it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import inf

import torch
from torch import Tensor

from kvchat.engine.api.ids import BlockKey, GroupId, block_key, u32le
from kvchat.engine.api.inspection import PathBlock
from kvchat.engine.formats.attention_metadata import TORCH_DTYPES
from kvchat.engine.formats.format_table import codec_of
from kvchat.engine.formats.full.codec import Codec, relative
from kvchat.engine.formats.recurrent.spec import computes_whole_steps
from kvchat.engine.formats.spec import CacheSpec, Group
from kvchat.engine.memory.disk.block_file import Layout
from kvchat.engine.memory.disk.offline_block_store import NewBlock, OfflineBlockStore
from kvchat.engine.quality.recompute import ComputedBlock, ReadPast, Recompute
from kvchat.errors import ConfigError, StorageError

TOLERANCE = {"F32": 1e-3, "F16": 2e-2, "BF16": 1e-1, "U8": 0.2}
"""Largest deviation, relative to the largest number of a layer's part of a block. Sums are taken in another
order where a prompt was computed in other chunks or on another device; forged numbers are far beyond this. In
8-bit records the least deviation can move a number to its next code, an eighth of it."""

_NO_ROOM = (
    "the disk limit has no room for what was computed; give it more with KVCHAT_KV_DISK_BYTES, or look at a"
    " part of it with --sample"
)


@dataclass(slots=True)
class Findings:
    """What has been found so far. A block counts once, whatever the number of its groups."""

    num_blocks: int = 0
    num_exact: int = 0
    """Blocks with the very same bits."""
    worst: float = 0.0
    """The largest relative deviation of a block that passed."""
    different: list[BlockKey] = field(default_factory=list)
    num_logits: int = 0
    worst_logits: float = 0.0
    """The largest relative deviation of logits behind stored KV."""
    wrong_logits: int = 0


class Verifier:
    """Compares the stored blocks of one fingerprint with freshly computed ones.

    Args:
        recompute: what computes.
        groups: of the model.
        block_store: the stored blocks; what disagrees is set aside in it.

    Raises:
        ConfigError: the groups are those of a view. Blocks behind what it hides are not what their exact
            names say, and none of them may be written under these. Or a model with states attends by itself.
    """

    def __init__(self, recompute: Recompute, groups: Sequence[Group], block_store: OfflineBlockStore) -> None:
        if any(group.spec.selection.has_hidden_blocks for group in groups):
            raise ConfigError(
                "KV is verified in the format in which it is stored, and a view stores it exact; use "
                "--cache-format exact"
            )
        if computes_whole_steps(groups):
            raise ConfigError("states of a model that attends by itself cannot be verified yet")
        self._recompute = recompute
        self._groups = groups
        self._specs = {group.id: group.spec for group in groups}
        self._block_store = block_store
        self._size = block_store.block_size
        self.findings = Findings()
        self._done: set[BlockKey] = set()

    def check_path(self, path: Sequence[int], targets: Sequence[PathBlock]) -> Iterator[PathBlock]:
        """Compute a whole path from nothing, compare its stored blocks, and yield them one by one.

        Effect: stores what was computed under the native names, whether or not the stored blocks agree.

        Raises:
            StorageError: there is no room for it.
        """
        todo = [target for target in targets if target.key not in self._done]
        if not todo:
            return
        ends = [self._end(target) for target in todo]
        states = {group.id for group in self._groups if group.is_state}
        kept = [self._end(target) for target in todo if states & {*target.groups}]
        for block in self._recompute.blocks(path[: max(ends)], 0, _nothing, kept):
            for target in [target for target in todo if target.number == block.number]:
                self._compare(target, block, keep=True)
                yield target
        self._check_logits(path, max(ends), 0, _nothing, targets)

    def check_block(self, path: Sequence[int], targets: Sequence[PathBlock], target: PathBlock) -> None:
        """Compute one block behind what is stored before it, and compare it."""
        end = self._end(target)
        past = self._stored_past(targets, target.number * self._size)
        has_past = all(
            past(number, group.id) is not None
            for group in self._groups
            for number in self._seen(group, target.number * self._size)
        )
        start = target.number * self._size if has_past else 0
        for block in self._recompute.blocks(path[:end], start, past, [end]):
            if block.number == target.number:
                self._compare(target, block, keep=False)
        self._check_logits(path, end, start, past, [*targets, target])

    def _end(self, target: PathBlock) -> int:
        return target.number * self._size + len(target.token_ids)

    def _seen(self, group: Group, position: int) -> range:
        """Return the numbers of the blocks that a query sees in a group, or behind which its state stands."""
        if group.is_state:
            number = (position - 1) // self._size
            return range(max(0, number), number + 1)
        first = group.spec.first_visible(position) // self._size
        return range(first, group.num_blocks(position, self._size))

    def _stored_past(self, targets: Sequence[PathBlock], end: int) -> ReadPast:
        """Return a reader of what is stored of a path before `end`: the longest at each place, and the state
        that stands there.
        """
        states = {group.id for group in self._groups if group.is_state}
        with_state = [one for one in targets if states & {*one.groups} and self._end(one) == end]
        best: dict[int, PathBlock] = {}
        for target in targets:
            known = best.get(target.number)
            if known is None or len(known.token_ids) < len(target.token_ids):
                best[target.number] = target

        def read(number: int, group: GroupId) -> bytes | None:
            target = next(iter(with_state), None) if group in states else best.get(number)
            if target is None or group not in target.groups:
                return None
            return self._block_store.read(group, target.parent, u32le(target.token_ids))

        return read

    def _compare(self, target: PathBlock, block: ComputedBlock, *, keep: bool) -> None:
        self._done.add(target.key)
        self.findings.num_blocks += 1
        worst, is_different = 0.0, False
        for group in target.groups:
            computed = block.read(group, len(target.token_ids))
            # What is kept has pushed it out, which says nothing of its bytes.
            if keep and group not in self._block_store.groups_of(target.key):
                raise StorageError(_NO_ROOM)
            stored = self._block_store.read(group, target.parent, u32le(target.token_ids))
            layout = self._block_store.layouts[group]
            found = inf if stored is None else deviation(stored, computed, layout, self._specs[group])
            worst = max(worst, found)
            if found > tolerance(layout):
                is_different = True
                self._block_store.set_aside(group, target.key)
            if keep:
                self._keep(group, target, computed)
        if is_different:
            self.findings.different.append(target.key)
        else:
            self.findings.num_exact += worst == 0.0
            self.findings.worst = max(self.findings.worst, worst)

    def _keep(self, group: GroupId, target: PathBlock, computed: bytes) -> None:
        """Store what was computed under the native name."""
        block = NewBlock(group, target.native_parent, tuple(target.token_ids), computed)
        if self._block_store.write([block], is_wanted=True):
            return
        if group not in self._block_store.groups_of(block_key(target.native_parent, target.token_ids)):
            raise StorageError(_NO_ROOM)

    def _check_logits(
        self, path: Sequence[int], end: int, start: int, past: ReadPast, targets: Sequence[PathBlock]
    ) -> None:
        """Compare logits at the end of a path's first `end` tokens with those that follow from what is
        stored of it; where layers keep states, those of the next token, which goes on from the stored ones.
        """
        path = path[: end + any(group.is_state for group in self._groups)]
        last = len(path) - 1
        stored = self._stored_past(targets, last)
        is_stored = all(
            stored(number, group.id) is not None
            for group in self._groups
            for number in self._seen(group, last)
        )
        if last < 1 or not is_stored:
            return
        computed = self._recompute.last_logits(path, start, past)
        found = relative(self._recompute.last_logits(path, last, stored), computed)
        self.findings.num_logits += 1
        if found > max(tolerance(layout) for layout in self._block_store.layouts.values()):
            self.findings.wrong_logits += 1
        else:
            self.findings.worst_logits = max(self.findings.worst_logits, found)


def deviation(stored: bytes, computed: bytes, layout: Layout, spec: CacheSpec | None = None) -> float:
    """Return the largest relative deviation over the tensors of a block; infinite where one is no number.

    Args:
        spec: what the tensors' bytes are; None: numbers.
    """
    if stored == computed:
        return 0.0
    codec = Codec() if spec is None else codec_of(spec)
    pairs = zip(_regions(stored, layout, codec), _regions(computed, layout, codec), strict=True)
    return max(codec.deviation(left, right) for left, right in pairs)


def tolerance(layout: Layout) -> float:
    return max(TOLERANCE[region.dtype] for region in layout)


def _regions(payload: bytes, layout: Layout, codec: Codec) -> Iterator[Tensor]:
    data = torch.frombuffer(bytearray(payload), dtype=torch.uint8)
    start = 0
    for region in layout:
        end = start + region.nbytes
        stored = data[start:end].view(TORCH_DTYPES[region.dtype]).view(region.shape)
        yield from codec.numbers(stored, region.name)
        start = end


def _nothing(number: int, group: GroupId) -> bytes | None:
    return None
