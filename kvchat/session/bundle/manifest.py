"""Manifest of a bundle: the session, its branches and its model, ahead of turns and blocks."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any

from kvchat.session.bundle.fields import Fields
from kvchat.session.bundle.layout import ITEM_BYTES, BundleLayout, BundleRegion
from kvchat.session.timestamps import LATEST

FORMAT = "kvchat.bundle"
MAX_TURNS = 1_000_000
MAX_BRANCHES = 100_000
MAX_GROUPS = 256
MAX_REGIONS = 8192
MAX_BLOCK_SIZE = 65_536
MAX_BLOCK_BYTES = 1 << 29
_MAX_NAME_LEN = 4096
_MAX_SYSTEM_LEN = 1 << 24
_MAX_DIMENSION = 1 << 24


@dataclass(frozen=True, slots=True, kw_only=True)
class BundleBranch:
    """A branch. `leaf` is the number of its last turn; None: it is empty."""

    name: str
    leaf: int | None
    updated_at: float


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


def read_manifest(header: Mapping[str, Any]) -> Manifest:
    """Return the manifest that a META record holds.

    Raises:
        BundleError: a field is missing or of another type or range.
    """
    fields = Fields(header, "the bundle's manifest")
    if fields.text("format") != FORMAT:
        raise fields.refuse(f"the format must be {FORMAT!r}")
    num_turns = fields.count("num_turns", MAX_TURNS + 1)
    branches = tuple(_branch(branch, num_turns) for branch in fields.objects("branches", MAX_BRANCHES))
    names = {branch.name for branch in branches}
    active = fields.text("active_branch", _MAX_NAME_LEN)
    if len(names) != len(branches):
        raise fields.refuse("two branches have one name")
    if active not in names:
        raise fields.refuse(f"there is no branch {active!r}, which is said to be the active one")
    return Manifest(
        title=fields.text("title", _MAX_NAME_LEN),
        system=fields.text("system", _MAX_SYSTEM_LEN),
        model=fields.text("model", _MAX_NAME_LEN),
        created_at=fields.seconds("created_at"),
        updated_at=fields.seconds("updated_at"),
        active_branch=active,
        branches=branches,
        num_turns=num_turns,
        kv=_model(fields.within("kv")) if fields.has("kv") else None,
    )


def _branch(fields: Fields, num_turns: int) -> BundleBranch:
    name = fields.text("name", _MAX_NAME_LEN)
    if not name or not name.isprintable():
        raise fields.refuse("a branch needs a name of visible characters")
    return BundleBranch(
        name=name, leaf=fields.count_or_none("leaf", num_turns), updated_at=fields.seconds("updated_at")
    )


def _model_values(model: BundleModel) -> dict[str, object]:
    return {
        "fingerprint": model.fingerprint.hex(),
        "fields": None if model.fields is None else dict(model.fields),
        "block_size": model.block_size,
        "groups": [
            {
                "id": group,
                "regions": [
                    {"name": region.name, "dtype": region.dtype, "shape": list(region.shape)}
                    for region in layout
                ],
            }
            for group, layout in sorted(model.layouts.items())
        ],
    }


def _model(fields: Fields) -> BundleModel:
    block_size = fields.count("block_size", MAX_BLOCK_SIZE + 1, least=1)
    layouts: dict[int, BundleLayout] = {}
    for group in fields.objects("groups", MAX_GROUPS):
        number = group.count("id", MAX_GROUPS)
        if number in layouts:
            raise group.refuse(f"group {number} occurs twice")
        layouts[number] = _layout(group, block_size)
    return BundleModel(
        fingerprint=fields.digest("fingerprint"),
        fields=fields.mapping("fields") if fields.has("fields") else None,
        block_size=block_size,
        layouts=layouts,
    )


def _layout(fields: Fields, block_size: int) -> BundleLayout:
    layout = tuple(_region(region, block_size) for region in fields.objects("regions", MAX_REGIONS))
    if not layout or len({region.name for region in layout}) != len(layout):
        raise fields.refuse("a group needs regions, each with a name of its own")
    if sum(region.num_bytes for region in layout) > MAX_BLOCK_BYTES:
        raise fields.refuse(f"a block of it would have more than {MAX_BLOCK_BYTES} bytes")
    return layout


def _region(fields: Fields, block_size: int) -> BundleRegion:
    dtype = fields.text("dtype")
    shape = fields.items("shape", 3)
    if dtype not in ITEM_BYTES:
        raise fields.refuse(f"the type {dtype!r} is none of {', '.join(ITEM_BYTES)}")
    if len(shape) != 3 or not all(type(size) is int and 0 < size < _MAX_DIMENSION for size in shape):
        raise fields.refuse("a shape is heads, slots, numbers: three whole numbers above 0")
    if shape[1] not in (1, block_size):
        raise fields.refuse(f"a region has {shape[1]} slots, and a block {block_size}")
    if prod(shape) > MAX_BLOCK_BYTES:
        raise fields.refuse(f"it would have more than {MAX_BLOCK_BYTES} bytes")
    return BundleRegion(name=fields.text("name", _MAX_NAME_LEN), dtype=dtype, shape=tuple(shape))
