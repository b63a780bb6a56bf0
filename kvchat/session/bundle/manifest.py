"""Manifest of a bundle: the session, its branches and its model, ahead of turns and blocks."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct, to_builtins

from kvchat.errors import BundleError
from kvchat.session.bundle.block_layout import ITEM_BYTES, BundleLayout
from kvchat.session.bundle.fields import Digest, Name, Seconds, read_header
from kvchat.session.timestamp_limits import LATEST

FORMAT = "kvchat.bundle"
MAX_TURNS = 1_000_000
MAX_BRANCHES = 100_000
MAX_GROUPS = 256
MAX_REGIONS = 8192
MAX_BLOCK_SIZE = 65_536
MAX_BLOCK_BYTES = 1 << 29
_MAX_SYSTEM_LEN = 1 << 24
_PLACE = "the bundle's manifest"


class BundleBranch(Struct, frozen=True, kw_only=True):
    """A branch. `leaf` is the number of its last turn; None: it is empty."""

    name: Annotated[Name, Meta(min_length=1)]
    leaf: Annotated[int, Meta(ge=0)] | None
    updated_at: Seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class BundleModel:
    """Whose keys and values the blocks are.

    Args:
        fingerprint: digest of all that they depend on besides the token ids.
        fields: what the digest was taken over, by name; None where the exporter did not know.
        block_size: tokens of a full block.
        layouts: for each group the tensors of one block; empty without blocks.
    """

    fingerprint: bytes
    fields: Mapping[str, Any] | None
    block_size: int
    layouts: Mapping[int, BundleLayout] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    title: str
    system: str
    model: str
    created_at: float
    updated_at: float
    active_branch: str
    branches: tuple[BundleBranch, ...]
    num_turns: int
    kv: BundleModel | None
    """None where no answer says which model it is from."""


def manifest_header(manifest: Manifest) -> dict[str, object]:
    """Return the header of the META record."""
    return {
        "format": FORMAT,
        "title": manifest.title,
        "system": manifest.system,
        "model": manifest.model,
        "created_at": min(manifest.created_at, LATEST),
        "updated_at": min(manifest.updated_at, LATEST),
        "active_branch": manifest.active_branch,
        "branches": [
            {"name": branch.name, "leaf": branch.leaf, "updated_at": min(branch.updated_at, LATEST)}
            for branch in manifest.branches
        ],
        "num_turns": manifest.num_turns,
        "kv": None if manifest.kv is None else _model_values(manifest.kv),
    }


class _Group(Struct, frozen=True):
    id: Annotated[int, Meta(ge=0, lt=MAX_GROUPS)]
    regions: Annotated[BundleLayout, Meta(min_length=1, max_length=MAX_REGIONS)]


class _Model(Struct, frozen=True, kw_only=True):
    fingerprint: Digest
    fields: dict[str, Any] | None = None
    block_size: Annotated[int, Meta(gt=0, le=MAX_BLOCK_SIZE)]
    groups: Annotated[tuple[_Group, ...], Meta(max_length=MAX_GROUPS)]


class _Header(Struct, frozen=True, kw_only=True):
    format: Literal["kvchat.bundle"]
    title: Name
    system: Annotated[str, Meta(max_length=_MAX_SYSTEM_LEN)]
    model: Name
    created_at: Seconds
    updated_at: Seconds
    active_branch: Name
    branches: Annotated[tuple[BundleBranch, ...], Meta(max_length=MAX_BRANCHES)]
    num_turns: Annotated[int, Meta(ge=0, le=MAX_TURNS)]
    kv: _Model | None = None


def read_manifest(header: Mapping[str, Any]) -> Manifest:
    """Return the manifest that a META record holds.

    Raises:
        BundleError: a field is missing or of another type or range.
    """
    read = read_header(_Header, header, _PLACE)
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
    return Manifest(
        title=read.title,
        system=read.system,
        model=read.model,
        created_at=read.created_at,
        updated_at=read.updated_at,
        active_branch=read.active_branch,
        branches=read.branches,
        num_turns=read.num_turns,
        kv=None if read.kv is None else _model(read.kv),
    )


def _model_values(model: BundleModel) -> dict[str, object]:
    return {
        "fingerprint": model.fingerprint.hex(),
        "fields": None if model.fields is None else dict(model.fields),
        "block_size": model.block_size,
        "groups": [
            {"id": group, "regions": to_builtins(layout)} for group, layout in sorted(model.layouts.items())
        ],
    }


def _model(read: _Model) -> BundleModel:
    layouts = {group.id: _layout(group, read.block_size) for group in read.groups}
    if len(layouts) != len(read.groups):
        raise BundleError(f"{_PLACE}: a group occurs twice")
    return BundleModel(
        fingerprint=bytes.fromhex(read.fingerprint),
        fields=read.fields,
        block_size=read.block_size,
        layouts=layouts,
    )


def _layout(group: _Group, block_size: int) -> BundleLayout:
    place = f"{_PLACE}, group {group.id}"
    if len({region.name for region in group.regions}) != len(group.regions):
        raise BundleError(f"{place}: a group needs regions, each with a name of its own")
    for region in group.regions:
        if region.dtype not in ITEM_BYTES:
            raise BundleError(f"{place}: the type {region.dtype!r} is none of {', '.join(ITEM_BYTES)}")
        if region.shape[1] not in (1, block_size):
            raise BundleError(f"{place}: a region has {region.shape[1]} slots, and a block {block_size}")
    if sum(region.num_bytes for region in group.regions) > MAX_BLOCK_BYTES:
        raise BundleError(f"{place}: a block of it would have more than {MAX_BLOCK_BYTES} bytes")
    return group.regions
