"""A small session with a fork, its blocks, and bundles made of them. No model, no engine."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from msgspec import structs

from kvchat.engine.api.ids import root_key
from kvchat.engine.models.fingerprint import digest_of
from kvchat.session.bundle.container import RecordWriter
from kvchat.session.bundle.manifest import (
    FORMAT,
    BundleBranch,
    BundleGroup,
    BundleModel,
    BundleRegion,
    Manifest,
)
from kvchat.session.bundle.writer import SourceBlock, Written, new_file, write_bundle
from kvchat.session.kv.block_references import runs_of
from kvchat.session.tree import Finish, Turn
from tests.session.turns import FINGERPRINT, open_answer, question

BLOCK = 4
LAYOUTS = {
    0: (
        BundleRegion(name="layers.0.k", dtype="F32", shape=(2, BLOCK, 1)),
        BundleRegion(name="layers.0.v", dtype="F32", shape=(2, BLOCK, 1)),
    ),
    1: (BundleRegion(name="layers.1.k", dtype="BF16", shape=(1, BLOCK, 3)),),
}
KV = BundleModel(
    digest=FINGERPRINT,
    fields={"dtype": "float32"},
    block_size=BLOCK,
    groups=tuple(BundleGroup(group, regions) for group, regions in LAYOUTS.items()),
)


def small_turns() -> tuple[Turn, ...]:
    """A question, its answer, and two questions behind it: 5, then 9 and 8 tokens on the paths."""
    first = question("demo2345", "Grüße!", (1, 2, 3))
    answer = replace(open_answer(first), text="Hallo \x1b[31m!", token_ids=(4, 5), finish=Finish.COMPLETE)
    left = question("demo2345", "left", (6, 7, 8, 9), parent=answer.id)
    right = question("demo2345", "right", (10, 11, 12), parent=answer.id)
    return first, answer, left, right


def small_manifest(kv: BundleModel | None = KV) -> Manifest:
    return Manifest(
        format=FORMAT,
        title="demo",
        system="Be brief.",
        model="starter",
        created_at=1.5,
        updated_at=2.5,
        active_branch="main",
        branches=(
            BundleBranch(name="main", leaf=2, updated_at=2.5),
            BundleBranch(name="main-2", leaf=3, updated_at=2.0),
        ),
        num_turns=4,
        kv=kv,
    )


def small_blocks(turns: Sequence[Turn], kv: BundleModel = KV) -> list[SourceBlock]:
    """Every block and every tail at the end of a turn, in both groups; slots without a token are zero."""
    blocks = []
    for run in dict.fromkeys(runs_of(turns, root_key(kv.fingerprint), BLOCK)):
        for group, layout in LAYOUTS.items():
            num_tokens = len(run.token_ids) // 4
            payload = bytearray()
            for region in layout:
                for head in range(region.shape[0]):
                    slot = bytes([1 + head]) * (region.num_bytes // (region.shape[0] * BLOCK))
                    payload += slot * num_tokens + bytes(len(slot) * (BLOCK - num_tokens))
            blocks.append(
                SourceBlock(group=group, parent=run.parent, token_ids=run.token_ids, payload=bytes(payload))
            )
    return blocks


def write_small(path: Path) -> Written:
    turns = small_turns()
    with new_file(path) as write:
        return write_bundle(write, small_manifest(), turns, small_blocks(turns))


def write_one_turn(path: Path) -> Written:
    """Write the smallest bundle with blocks: one question and its tail."""
    turns = small_turns()[:1]
    branches = (BundleBranch(name="main", leaf=0, updated_at=2.5),)
    manifest = structs.replace(small_manifest(), branches=branches, num_turns=1)
    with new_file(path) as write:
        return write_bundle(write, manifest, turns, small_blocks(turns))


def write_storable(path: Path) -> Written:
    """Write a bundle of one question whose fingerprint is that of its fields: a block of each group."""
    layouts = {
        str(group): [[region.name, region.dtype, list(region.shape)] for region in layout]
        for group, layout in LAYOUTS.items()
    }
    fields = {"dtype": "float32", "block_size": BLOCK, "layouts": layouts}
    kv = structs.replace(KV, digest=digest_of(fields).hex(), fields=fields)
    turns = (replace(question("demo2345", "Grüße!", (1, 2, 3, 4)), fingerprint=kv.digest),)
    branches = (BundleBranch(name="main", leaf=0, updated_at=2.5),)
    manifest = structs.replace(small_manifest(kv), branches=branches, num_turns=1)
    with new_file(path) as write:
        return write_bundle(write, manifest, turns, small_blocks(turns, kv))


def write_records(path: Path, *records: tuple[str, dict[str, Any], bytes]) -> Path:
    """Write records as they are given, with right digests: what only a forger would write."""
    with path.open("wb") as file:
        writer = RecordWriter(file.write)
        for kind, header, body in records:
            writer.write(kind, header, body)
    return path
