"""Identities that cross the engine's boundary, and the names of blocks.

A block is named by what it holds: the key chains the parent's key with the block's token ids, so equal
prefixes under one fingerprint have equal keys on every tier, in every process.
"""

import sys
from array import array
from collections.abc import Sequence
from hashlib import blake2b
from itertools import pairwise
from typing import NewType

SequenceId = NewType("SequenceId", int)
RequestId = NewType("RequestId", int)
GroupId = NewType("GroupId", int)
BlockId = NewType("BlockId", int)
BlockKey = NewType("BlockKey", bytes)

KEY_BYTES = 32
_BLOCK_PERSON = b"kvchat.block1"
_ROOT_PERSON = b"kvchat.root1"


def root_key(fingerprint: bytes, namespace: str = "") -> BlockKey:
    """Return the parent key of a conversation's first block.

    Args:
        fingerprint: 32-byte digest of everything KV is a function of, besides the token ids.
        namespace: empty for native blocks; imported, converted or tainted blocks have their own.
    """
    assert len(fingerprint) == KEY_BYTES
    digest = blake2b(fingerprint + namespace.encode(), digest_size=KEY_BYTES, person=_ROOT_PERSON)
    return BlockKey(digest.digest())


def block_key(parent: BlockKey, token_ids: Sequence[int]) -> BlockKey:
    """Return the key of the block that holds `token_ids` behind `parent`.

    `token_ids` has block_size entries for a full block and fewer for a tail; the length is part of the
    digest.
    """
    ids = u32le(token_ids)
    length = len(token_ids).to_bytes(4, "little")
    return BlockKey(blake2b(parent + length + ids, digest_size=KEY_BYTES, person=_BLOCK_PERSON).digest())


def chain_keys(root: BlockKey, token_ids: Sequence[int], block_size: int) -> list[BlockKey]:
    """Return the keys of all full blocks of `token_ids`, first block first."""
    edges = range(0, len(token_ids) + 1, block_size)
    keys: list[BlockKey] = []
    parent = root
    for start, end in pairwise(edges):
        parent = block_key(parent, token_ids[start:end])
        keys.append(parent)
    return keys


def path_keys(root: BlockKey, token_ids: Sequence[int], block_size: int) -> list[BlockKey]:
    """Return the keys of all full blocks of `token_ids`, and of the tail behind them where there is one."""
    keys = chain_keys(root, token_ids, block_size)
    rest = token_ids[len(keys) * block_size :]
    return [*keys, block_key(keys[-1] if keys else root, rest)] if rest else keys


def u32le(token_ids: Sequence[int]) -> bytes:
    """Return token ids as little-endian unsigned 32-bit integers, as they are hashed and stored."""
    ids = array("I", token_ids)
    assert ids.itemsize == 4
    if sys.byteorder == "big":
        ids.byteswap()
    return ids.tobytes()


def from_u32le(data: bytes) -> list[int]:
    """Return the token ids that `u32le` packed."""
    ids = array("I")
    ids.frombytes(data)
    if sys.byteorder == "big":
        ids.byteswap()
    return ids.tolist()
