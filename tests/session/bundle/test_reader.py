"""A bundle comes back as it went in, or is refused with a reason; nothing of it is believed unchecked."""

import os
import struct
from pathlib import Path
from typing import Any

import pytest
from msgspec import to_builtins

from kvchat.engine.api.ids import root_key
from kvchat.errors import BundleError
from kvchat.session.bundle.container import BLOCK as BLOK
from kvchat.session.bundle.container import END, MAGIC, META, TURN
from kvchat.session.bundle.reader import read_blocks, read_bundle, renamed
from kvchat.session.bundle.turn_record import turn_body, turn_header
from kvchat.session.kv.block_references import runs_of
from kvchat.session.tree import path_token_ids
from tests.damage import flipped
from tests.session.bundle.bundles import (
    BLOCK,
    KV,
    LAYOUTS,
    small_blocks,
    small_manifest,
    small_turns,
    write_one_turn,
    write_records,
    write_small,
)

pytestmark = [pytest.mark.pure, pytest.mark.long]

Records = list[tuple[str, dict[str, Any], bytes]]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "demo.kvchat"


def small_records() -> Records:
    """The records of the small bundle, to be forged."""
    turns = small_turns()
    numbers = {turn.id: number for number, turn in enumerate(turns)}
    records: Records = [(META, to_builtins(small_manifest()), b"")]
    records += [(TURN, dict(turn_header(turn, numbers)), turn_body(turn)) for turn in turns]
    for block in small_blocks(turns):
        header = {"group": block.group, "parent": block.parent.hex(), "num_tokens": block.num_tokens}
        layout_bytes = sum(r.num_bytes for r in LAYOUTS[block.group]) // BLOCK * block.num_tokens
        records.append((BLOK, dict(header), block.token_ids + bytes(layout_bytes)))
    records.append((END, {"num_turns": 4, "num_blocks": len(small_blocks(turns))}, b""))
    return records


def test_a_bundle_comes_back_as_it_went_in(path: Path) -> None:
    turns = small_turns()
    written = write_small(path)
    bundle = read_bundle(path)
    assert bundle.manifest == small_manifest()
    assert [turn.text for turn in bundle.turns] == [turn.text for turn in turns]
    assert path_token_ids(bundle.turns[:3]) == path_token_ids(turns[:3])
    assert [turn.usage for turn in bundle.turns] == [turn.usage for turn in turns]
    assert bundle.branches[1].leaf_id == bundle.turns[3].id
    assert {turn.session_id for turn in bundle.turns} == {bundle.session_id}
    assert bundle.digest == written.digest
    blocks = list(read_blocks(path, bundle))
    assert [bytes(block.payload) for block in blocks] == [block.payload for block in small_blocks(turns)]
    assert (bundle.num_blocks, bundle.num_bytes) == (len(blocks), path.stat().st_size)


def test_the_file_is_its_owners_alone_and_nothing_else_is_left(path: Path) -> None:
    write_small(path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert list(path.parent.iterdir()) == [path]


def test_a_link_in_the_place_of_a_bundle_is_replaced_and_not_followed(path: Path) -> None:
    victim = path.with_name("victim")
    victim.write_text("mine")
    path.symlink_to(victim)
    write_small(path)
    assert victim.read_text() == "mine"
    assert path.is_file()
    assert not path.is_symlink()


def test_blocks_get_names_that_no_native_block_has(path: Path) -> None:
    write_small(path)
    bundle = read_bundle(path)
    names = renamed(bundle.turns, KV, bundle.namespace)
    blocks = list(read_blocks(path, bundle))
    full = {block.key for block in blocks if len(block.token_ids) == BLOCK}
    assert full | {root_key(KV.fingerprint)} == set(names)
    assert not set(names) & set(names.values())
    assert all(block.parent in names for block in blocks)
    ours = {run.key for run in runs_of(bundle.turns, root_key(KV.fingerprint, bundle.namespace), BLOCK)}
    assert set(names.values()) - {root_key(KV.fingerprint, bundle.namespace)} == ours - {None}


def test_every_flipped_byte_and_every_cut_is_refused(path: Path) -> None:
    """Trap 24: nothing is ever half believed."""
    write_one_turn(path)
    assert read_bundle(path).num_blocks == 2
    intact = path.read_bytes()
    broken = path.with_name("broken.kvchat")
    for at in range(len(intact)):
        broken.write_bytes(flipped(intact, at, (1 << at % 8)))
        with pytest.raises(BundleError):
            read_bundle(broken)
    for end in range(0, len(intact), 7):
        broken.write_bytes(intact[:end])
        with pytest.raises(BundleError):
            read_bundle(broken)


def test_bytes_behind_the_end_are_refused(path: Path) -> None:
    write_small(path)
    path.write_bytes(path.read_bytes() + b"\0")
    with pytest.raises(BundleError, match="1 bytes behind its end"):
        read_bundle(path)


def test_a_newer_format_says_so(path: Path) -> None:
    write_small(path)
    data = path.read_bytes()
    path.write_bytes(MAGIC + struct.pack("<I", 2) + data[20:])
    with pytest.raises(BundleError, match=r"version 2 of the format.*update kvchat"):
        read_bundle(path)


def test_what_is_no_bundle_no_file_or_not_there_says_so(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("hello")
    os.mkfifo(tmp_path / "pipe")
    for name, reason in (
        ("text", "not a kvchat bundle"),
        ("pipe", "not a regular file"),
        ("gone", "No such file"),
        (".", "not a regular file|Is a directory"),
    ):
        with pytest.raises(BundleError, match=reason):
            read_bundle(tmp_path / name)


@pytest.mark.parametrize("part", [4, 8])
def test_a_length_of_billions_is_refused_before_anything_is_read(path: Path, part: int) -> None:
    write_small(path)
    data = bytearray(path.read_bytes())
    data[20 + part : 24 + part] = b"\xff\xff\xff\x7f"
    path.write_bytes(data)
    with pytest.raises(BundleError, match=r"claims \d+ bytes"):
        read_bundle(path)


def test_a_file_that_changes_between_the_two_readings_is_refused(path: Path) -> None:
    write_small(path)
    bundle = read_bundle(path)
    write_small(path)  # other times of the turns, so other digests
    with pytest.raises(BundleError, match="changed while"):
        list(read_blocks(path, bundle))


def records_and_place(kind: str, number: int) -> tuple[Records, int]:
    """Return the records of the small bundle, and where the n-th of a kind is among them."""
    records = small_records()
    return records, [place for place, record in enumerate(records) if record[0] == kind][number]


def forged(kind: str, number: int, **changes: Any) -> Records:
    """Change fields of the header of the n-th record of a kind."""
    records, place = records_and_place(kind, number)
    _, header, body = records[place]
    records[place] = (kind, header | changes, body)
    return records


def without(kind: str, number: int) -> Records:
    records, place = records_and_place(kind, number)
    del records[place]
    return records


def with_body(kind: str, number: int, body: bytes) -> Records:
    records, place = records_and_place(kind, number)
    records[place] = (kind, records[place][1], body)
    return records


def twice(kind: str, number: int) -> Records:
    records, place = records_and_place(kind, number)
    records.insert(place, records[place])
    return records


def group(**changes: Any) -> dict[str, Any]:
    """The manifest's `kv` with a changed first region."""
    kv: dict[str, Any] = to_builtins(small_manifest())["kv"]
    first = kv["groups"][0]
    region = first["regions"][0] | changes
    return kv | {"groups": [first | {"regions": [region, *first["regions"][1:]]}, *kv["groups"][1:]]}


FORGERIES: dict[str, tuple[Records, str]] = {
    "the wrong format": (forged(META, 0, format="zip"), r"\$\.format"),
    "no format at all": ([(META, {}, b"")], "missing required field `format`"),
    "a title that is a number": (forged(META, 0, title=7), "`str`, got `int`"),
    "a title of a million letters": (forged(META, 0, title="x" * 10**6), "of length <= 4096"),
    "a billion turns": (forged(META, 0, num_turns=10**9), r"<= 1000000 - at `\$\.num_turns"),
    "more turns than there are": (forged(META, 0, num_turns=5), "has 5 turns, and has 4"),
    "fewer turns than there are": (forged(META, 0, num_turns=3), "the leaf of branch|more turns"),
    "a date that is none": (forged(META, 0, created_at=1e30), r"\$\.created_at"),
    "a leaf that is no turn": (
        forged(META, 0, branches=[{"name": "main", "leaf": 4, "updated_at": 1}]), "the leaf of branch",
    ),
    "two branches of one name": (
        forged(META, 0, branches=[{"name": "main", "leaf": 1, "updated_at": 1}] * 2), "two branches",
    ),
    "a branch that steers a terminal": (
        forged(META, 0, branches=[{"name": "\x1b[2J", "leaf": 1, "updated_at": 1}]), "visible characters",
    ),
    "an active branch that is none": (forged(META, 0, active_branch="../../etc"), "no branch '../../etc'"),
    "a fingerprint that is a path": (
        forged(META, 0, kv=group() | {"fingerprint": "../" * 20}), r"\$\.kv\.fingerprint",
    ),
    "a region of 4 TB": (forged(META, 0, kv=group(shape=[2**20, BLOCK, 2**20])), "more than"),
    "a region with a size below zero": (forged(META, 0, kv=group(shape=[2, BLOCK, -1])), r"shape\[2\]"),
    "a region with other slots": (forged(META, 0, kv=group(shape=[2, 5, 1])), "has 5 slots"),
    "a region of an unknown type": (forged(META, 0, kv=group(dtype="F8")), "'F8' is none of"),
    "a block size of zero": (forged(META, 0, kv=group() | {"block_size": 0}), r"\$\.kv\.block_size"),
    "a turn before its parent": (forged(TURN, 1, parent=2), "parent must be"),
    "a turn that is its own parent": (forged(TURN, 0, parent=0), "parent must be"),
    "a turn of nobody": (forged(TURN, 0, role="system"), r"'system' - at `\$\.role"),
    "a turn that is still growing": (forged(TURN, 1, finish="partial"), "must have ended"),
    "counts below zero": (
        forged(TURN, 1, usage={"prompt_tokens": -1}), r">= 0 - at `\$\.usage",
    ),
    "half a token": (with_body(TURN, 0, b"\0\0\0"), "whole 32-bit numbers"),
    "ids where there are none": (forged(TURN, 0, has_ids=False), "whole 32-bit numbers"),
    "a missing turn": (without(TURN, 1), "parent must be|has 4 turns"),
    "a block in no group": (forged(BLOK, 0, group=7), "no group 7"),
    "a block of no tokens": (forged(BLOK, 0, num_tokens=0), "num_tokens must be"),
    "a block of too many tokens": (forged(BLOK, 0, num_tokens=5), "num_tokens must be"),
    "a block of another size": (forged(BLOK, 0, num_tokens=2), "are not those of 2 tokens"),
    "a block behind an unknown one": (forged(BLOK, 0, parent="00" * 32), "in none of its turns"),
    "a block twice": (twice(BLOK, 0), "one block twice"),
    "a block of a foreign conversation": (
        with_body(BLOK, 0, bytes([9, 0, 0, 0] * 3) + bytes(48)), "in none of its turns",
    ),
    "blocks without a model": (forged(META, 0, kv=None), "does not say of which model"),
    "a missing block": (without(BLOK, 0), "counts other turns or blocks"),
    "a second manifest": (twice(META, 0), "META record stands among"),
    "no end": (without(END, 0), "ends early"),
}  # fmt: skip


@pytest.mark.parametrize("forgery", FORGERIES)
def test_a_forgery_with_right_digests_is_refused_with_its_reason(path: Path, forgery: str) -> None:
    records, reason = FORGERIES[forgery]
    with pytest.raises(BundleError, match=f"demo.kvchat is refused: .*({reason})"):
        read_bundle(write_records(path, *records))


def test_the_records_that_are_forged_here_are_a_bundle_when_nothing_is_changed(path: Path) -> None:
    assert len(read_bundle(write_records(path, *small_records())).turns) == 4


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b'{"format":"kvchat.bundle","format":"zip"}', "a name occurs twice"),
        (b"[" * 100_000, "no JSON"),
        (b"[1]", "no JSON object"),
        (b'{"created_at":NaN}', "NaN is no number"),
        (b"\xff\xfe", "no JSON"),
        (b'{"num_turns":' + b"9" * 5000 + b"}", "no JSON|no field"),
        (b'{"a":' * 100_000 + b"0" + b"}" * 100_000, "no JSON"),
        (b'{"branches":[' + b"[]," * (2 << 20) + b"[]]}", "too many values"),
        (b"{" + b'"a":0,' * (2 << 20) + b'"b":0}', "too many values"),
        (b'["' + b'","' * (5 << 20) + b'"]', "too many values"),
    ],
)
def test_a_header_that_is_no_plain_object_is_refused(path: Path, text: bytes, reason: str) -> None:
    records = small_records()[1:]
    write_records(path, ("META", {}, b""), *records)
    _put_first_header(path, text)
    with pytest.raises(BundleError, match=reason):
        read_bundle(path)


def _put_first_header(path: Path, text: bytes) -> None:
    """Write a bundle of one record with this header and a right digest."""
    from hashlib import blake2b

    start = path.read_bytes()[:20]
    frame = struct.pack("<4sIQ", b"META", len(text), 0)
    first = blake2b(start, digest_size=32, person=b"kvchat.bundle1").digest()
    digest = blake2b(first + frame + text, digest_size=32, person=b"kvchat.bundle1").digest()
    path.write_bytes(start + frame + text + digest)
