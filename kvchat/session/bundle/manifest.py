"""Manifest of a bundle: the session, its branches and its model with the layout of its blocks.

Tails are stored without their empty slots.
"""

from collections.abc import Iterator, Mapping, Sequence
from math import prod
from typing import Annotated, Any, Final, Literal

from msgspec import Meta, Struct, field

from kvchat.errors import BundleError
from kvchat.session.bundle.container import Digest, Name, Seconds, read_header

FORMAT: Final = "kvchat.bundle"
MAX_TURNS = 1_000_000
MAX_BRANCHES = 100_000
MAX_GROUPS = 256
MAX_REGIONS = 8192
MAX_BLOCK_SIZE = 65_536
MAX_BLOCK_BYTES = 1 << 29
_MAX_SYSTEM_LEN = 1 << 24
_ITEM_BYTES = {"F32": 4, "F16": 2, "BF16": 2, "U8": 1}
_PLACE = "the bundle's manifest"

Size = Annotated[int, Meta(gt=0, lt=1 << 24)]


class BundleRegion(Struct, frozen=True, kw_only=True):
    """One tensor inside a block: a layer's keys or values, [H_kv, P, D]; of quantised blocks, which are never
    cut, [H_kv, 1, D], a record of the whole block for each head.
    """

    name: Name
    dtype: str
    shape: Annotated[tuple[Size, ...], Meta(min_length=3, max_length=3)]

    @property
    def num_bytes(self) -> int:
        return prod(self.shape) * _ITEM_BYTES[self.dtype]


BundleLayout = tuple[BundleRegion, ...]


class BundleBranch(Struct, frozen=True, kw_only=True):
    """A branch. `leaf` is the number of its last turn; None: it is empty."""

    name: Annotated[Name, Meta(min_length=1)]
    leaf: Annotated[int, Meta(ge=0)] | None
    updated_at: Seconds


class BundleGroup(Struct, frozen=True):
    """The tensors of one block of a group."""

    id: Annotated[int, Meta(ge=0, lt=MAX_GROUPS)]
    regions: Annotated[BundleLayout, Meta(min_length=1, max_length=MAX_REGIONS)]


class BundleModel(Struct, frozen=True, kw_only=True):
    """Whose keys and values the blocks are.

    Args:
        digest: of all that they depend on besides the token ids, in hexadecimal.
        fields: what the digest was taken over, by name; None where the exporter did not know.
        block_size: tokens of a full block.
        groups: none without blocks.
    """

    digest: Digest = field(name="fingerprint")
    fields: dict[str, Any] | None = None
    block_size: Annotated[int, Meta(gt=0, le=MAX_BLOCK_SIZE)]
    groups: Annotated[tuple[BundleGroup, ...], Meta(max_length=MAX_GROUPS)]

    @property
    def fingerprint(self) -> bytes:
        return bytes.fromhex(self.digest)

    @property
    def layouts(self) -> Mapping[int, BundleLayout]:
        return {group.id: group.regions for group in self.groups}


class Manifest(Struct, frozen=True, kw_only=True):
    """Header of the META record. `kv`: None where no answer says which model it is from."""

    format: Literal["kvchat.bundle"]
    title: Name
    system: Annotated[str, Meta(max_length=_MAX_SYSTEM_LEN)]
    model: Name
    created_at: Seconds
    updated_at: Seconds
    active_branch: Name
    branches: Annotated[tuple[BundleBranch, ...], Meta(max_length=MAX_BRANCHES)]
    num_turns: Annotated[int, Meta(ge=0, le=MAX_TURNS)]
    kv: BundleModel | None = None


def read_manifest(header: Mapping[str, Any]) -> Manifest:
    """Return the manifest that a META record holds.

    Raises:
        BundleError: a field is missing or of another type or range.
    """
    read = read_header(Manifest, header, _PLACE)
    names = {branch.name for branch in read.branches}
    if not all(name.isprintable() for name in names):
        raise BundleError(f"{_PLACE}: a branch needs a name of visible characters")
    if len(names) != len(read.branches):
        raise BundleError(f"{_PLACE}: two branches have one name")
    if read.active_branch not in names:
        raise BundleError(
            f"{_PLACE}: there is no branch {read.active_branch!r}, which is said to be the active one"
        )
    for branch in read.branches:
        if branch.leaf is not None and branch.leaf >= read.num_turns:
            raise BundleError(f"{_PLACE}: the leaf of branch {branch.name!r} is none of its turns")
    if read.kv is not None:
        _check(read.kv)
    return read


def _check(kv: BundleModel) -> None:
    if len(kv.layouts) != len(kv.groups):
        raise BundleError(f"{_PLACE}: a group occurs twice")
    for group in kv.groups:
        place = f"{_PLACE}, group {group.id}"
        if len({region.name for region in group.regions}) != len(group.regions):
            raise BundleError(f"{place}: a group needs regions, each with a name of its own")
        for region in group.regions:
            if region.dtype not in _ITEM_BYTES:
                raise BundleError(f"{place}: the type {region.dtype!r} is none of {', '.join(_ITEM_BYTES)}")
            if region.shape[1] not in (1, kv.block_size):
                slots = region.shape[1]
                raise BundleError(f"{place}: a region has {slots} slots, and a block {kv.block_size}")
        if sum(region.num_bytes for region in group.regions) > MAX_BLOCK_BYTES:
            raise BundleError(f"{place}: a block of it would have more than {MAX_BLOCK_BYTES} bytes")


def payload_bytes(layout: BundleLayout, num_tokens: int) -> int:
    """Return the bytes of a block of which only the first `num_tokens` slots are stored."""
    return sum(num_bytes for _, num_bytes in _runs(layout, num_tokens))


def trimmed(payload: bytes, layout: BundleLayout, num_tokens: int) -> bytes:
    """Return a block without the slots behind its tokens. Layout: each region [H_kv, num_tokens, D]."""
    return b"".join(payload[start : start + num_bytes] for start, num_bytes in _runs(layout, num_tokens))


def padded(trimmed_payload: Sequence[int], layout: BundleLayout, num_tokens: int) -> bytearray:
    """Return a whole block again; the slots behind its tokens are zero."""
    source = memoryview(bytes(trimmed_payload))
    payload = bytearray(sum(region.num_bytes for region in layout))
    taken = 0
    for start, num_bytes in _runs(layout, num_tokens):
        payload[start : start + num_bytes] = source[taken : taken + num_bytes]
        taken += num_bytes
    assert taken == len(source)
    return payload


def _runs(layout: BundleLayout, num_tokens: int) -> Iterator[tuple[int, int]]:
    """Yield, head by head, where its slots start, and the bytes of those that are stored."""
    start = 0
    for region in layout:
        num_heads, num_slots, _ = region.shape
        head_bytes = region.num_bytes // num_heads
        for _ in range(num_heads):
            yield start, min(num_tokens, num_slots) * head_bytes // num_slots
            start += head_bytes
