"""The names of blocks: what they depend on, byte for byte."""

from hashlib import blake2b

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvchat.engine.api.ids import block_key, chain_keys, from_u32le, root_key, u32le
from tests.engine.cache.caches import FINGERPRINT, ROOT

pytestmark = pytest.mark.pure

token_ids = st.lists(st.integers(0, 2**32 - 1), max_size=40)


def test_a_key_is_the_digest_that_the_format_defines() -> None:
    packed = ROOT + b"\x03\0\0\0" + b"\x01\0\0\0\0\x01\0\0\xff\xff\xff\xff"
    digest = blake2b(packed, digest_size=32, person=b"kvchat.block1")
    assert block_key(ROOT, [1, 256, 2**32 - 1]) == digest.digest()
    root = blake2b(FINGERPRINT + b"bundle-7", digest_size=32, person=b"kvchat.root1")
    assert root_key(FINGERPRINT, "bundle-7") == root.digest()


def test_a_chain_names_full_blocks_only_each_behind_its_parent() -> None:
    keys = chain_keys(ROOT, [1, 2, 3, 4, 5, 6, 7], 3)
    assert keys == [block_key(ROOT, [1, 2, 3]), block_key(keys[0], [4, 5, 6])]
    assert chain_keys(ROOT, [], 3) == chain_keys(ROOT, [1, 2], 3) == []


def test_other_weights_or_another_namespace_share_no_name() -> None:
    """Trap 1."""
    roots = {root_key(FINGERPRINT), root_key(b"\x08" + FINGERPRINT[1:]), root_key(FINGERPRINT, "imported")}
    assert len({block_key(root, [1, 2]) for root in roots}) == 3


@given(ids=token_ids)
def test_packed_ids_come_back(ids: list[int]) -> None:
    packed = u32le(ids)
    assert packed == b"".join(token.to_bytes(4, "little") for token in ids)
    assert from_u32le(packed) == ids


@given(ids=token_ids, length=st.integers(0, 40), block_size=st.integers(1, 7))
def test_equal_prefixes_have_equal_names(ids: list[int], length: int, block_size: int) -> None:
    keys = chain_keys(ROOT, ids, block_size)
    assert chain_keys(ROOT, ids[:length], block_size) == keys[: min(length, len(ids)) // block_size]
