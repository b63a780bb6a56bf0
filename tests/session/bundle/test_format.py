"""A second reader, written from docs/bundles.md alone: it knows no module of kvchat."""

import json
import struct
from hashlib import blake2b
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.pure

EXAMPLES = sorted((Path(__file__).parents[3] / "sessions").glob("*.kvchat"))
ITEM_BYTES = {"F32": 4, "F16": 2, "BF16": 2}


def digest(person: str, *parts: bytes) -> bytes:
    return blake2b(b"".join(parts), digest_size=32, person=person.encode()).digest()


def read_records(data: bytes) -> list[tuple[str, dict[str, Any], bytes]]:
    assert data[:20] == b"\x93kvchat bundle\n\x1a" + struct.pack("<I", 1)
    known = digest("kvchat.bundle1", data[:20])
    records = []
    at = 20
    while at < len(data):
        kind, header_len, body_len = struct.unpack("<4sIQ", data[at : at + 16])
        end = at + 16 + header_len + body_len
        known = digest("kvchat.bundle1", known, data[at:end])
        assert data[end : end + 32] == known
        header = json.loads(data[at + 16 : at + 16 + header_len])
        records.append((kind.decode(), header, data[at + 16 + header_len : end]))
        at = end + 32
    return records


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_the_page_is_enough_to_read_a_bundle(path: Path) -> None:
    records = read_records(path.read_bytes())
    kinds = [kind for kind, _, _ in records]
    num_turns, num_blocks = kinds.count("TURN"), kinds.count("BLOK")
    assert kinds == ["META", *["TURN"] * num_turns, *["BLOK"] * num_blocks, "END."]
    meta, end = records[0][1], records[-1][1]
    assert (meta["format"], meta["num_turns"]) == ("kvchat.bundle", num_turns)
    assert end == {"num_turns": num_turns, "num_blocks": num_blocks}
    kv = meta["kv"]
    canonical = json.dumps(kv["fields"], sort_keys=True, separators=(",", ":")).encode()
    assert digest("kvchat.print1", canonical).hex() == kv["fingerprint"]
    for number, (_, header, body) in enumerate(records[1 : 1 + num_turns]):
        assert header["parent"] is None or header["parent"] < number
        assert header["has_ids"]
        assert len(body) % 4 == 0
    check_blocks(records[1 + num_turns : -1], kv)


def check_blocks(records: list[tuple[str, dict[str, Any], bytes]], kv: dict[str, Any]) -> None:
    """Check that each block hangs on the root or on a block before it, and has the bytes of its tokens."""
    groups = {group["id"]: group["regions"] for group in kv["groups"]}
    known = {digest("kvchat.root1", bytes.fromhex(kv["fingerprint"])).hex()}
    for _, header, body in records:
        num_tokens = header["num_tokens"]
        ids = body[: 4 * num_tokens]
        assert header["parent"] in known
        parent = bytes.fromhex(header["parent"])
        known.add(digest("kvchat.block1", parent, struct.pack("<I", num_tokens), ids).hex())
        num_bytes = 0
        for region in groups[header["group"]]:
            heads, block_size, numbers = region["shape"]
            assert block_size == kv["block_size"]
            num_bytes += heads * num_tokens * numbers * ITEM_BYTES[region["dtype"]]
        assert len(body) == 4 * num_tokens + num_bytes


def test_there_are_examples() -> None:
    assert len(EXAMPLES) >= 2
