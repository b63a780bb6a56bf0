"""Bundle reader: one pass verifies everything, a second one extracts the blocks.

Nothing is changed between the two, so a file that is refused leaves no trace. At most one block is in memory;
the turns are.
"""

import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from msgspec import Struct

from kvchat.engine.api.ids import BlockKey, block_key, from_u32le, root_key
from kvchat.errors import BundleError
from kvchat.session.bundle.container import (
    BLOCK,
    END,
    META,
    TURN,
    Count,
    Digest,
    Record,
    RecordReader,
    read_header,
)
from kvchat.session.bundle.manifest import BundleModel, Manifest, padded, payload_bytes, read_manifest
from kvchat.session.bundle.turn_record import read_turn
from kvchat.session.bundle.writer import Progress
from kvchat.session.kv.block_references import References, runs_of
from kvchat.session.store import new_session_id, new_turn_id
from kvchat.session.tree import Branch, BranchName, Session, SessionId, Turn, TurnId

MAX_TEXT_BYTES = 1 << 30
"""Of all turns together: they are held in memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BundleBlock:
    """One group's part of a block or tail, its payload of full size again."""

    group: int
    parent: BlockKey
    token_ids: tuple[int, ...]
    payload: bytearray

    @property
    def key(self) -> BlockKey:
        return block_key(self.parent, self.token_ids)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundle:
    """What a whole and intact bundle holds, besides its blocks.

    Args:
        session_id: new; the turns belong to it.
        digest: names the bundle.
        num_blocks: blocks and tails, each group counted by itself.
    """

    manifest: Manifest
    session_id: SessionId
    turns: tuple[Turn, ...]
    digest: bytes
    num_blocks: int
    num_bytes: int

    @property
    def namespace(self) -> str:
        """Whose the blocks are until they have been verified."""
        return f"bundle:{self.digest.hex()}"

    def session(self, *, model: str, namespace: str) -> Session:
        """Return the session that this bundle becomes."""
        return Session(
            id=self.session_id,
            title=self.manifest.title,
            system=self.manifest.system,
            model=model,
            created_at=self.manifest.created_at,
            updated_at=self.manifest.updated_at,
            active_branch=BranchName(self.manifest.active_branch),
            namespace=namespace,
        )

    @property
    def branches(self) -> tuple[Branch, ...]:
        return tuple(
            Branch(
                session_id=self.session_id,
                name=BranchName(branch.name),
                leaf_id=None if branch.leaf is None else self.turns[branch.leaf].id,
                updated_at=branch.updated_at,
            )
            for branch in self.manifest.branches
        )


def read_bundle(path: Path, progress: Progress | None = None) -> Bundle:
    """Return what a bundle holds, all of it checked: digests, sizes, names, and that every block belongs.

    Raises:
        BundleError: it cannot be opened, or anything in it is not as it must be.
    """
    with _opened(path) as (file, num_bytes):
        records = RecordReader(file, num_bytes)
        manifest = read_manifest(_is(META, records.read()).header)
        turns, record = _read_turns(records, manifest)
        seen: set[tuple[BlockKey, int]] = set()
        kv, known = manifest.kv, References()
        if kv is not None:
            known.add(runs_of(turns, root_key(kv.fingerprint), kv.block_size))
        while record.kind == BLOCK:
            if kv is None:
                raise BundleError("it has blocks, and does not say of which model")
            name = _checked_name(_block(record, kv), kv.block_size, known)
            if name in seen:
                raise BundleError("it has one block twice")
            seen.add(name)
            if progress is not None:
                progress(records.position)
            record = records.read()
        end = read_header(_End, _is(END, record).header, "the end")
        if (end.num_turns, end.num_blocks) != (len(turns), len(seen)):
            raise BundleError("the end: it counts other turns or blocks than there are")
        records.expect_end()
        return Bundle(
            manifest=manifest,
            session_id=turns[0].session_id if turns else new_session_id(),
            turns=turns,
            digest=records.digest,
            num_blocks=len(seen),
            num_bytes=num_bytes,
        )


def read_blocks(path: Path, bundle: Bundle) -> Iterator[BundleBlock]:
    """Yield the blocks of a bundle that has been read.

    Raises:
        BundleError: the file is another one by now.
    """
    assert bundle.manifest.kv is not None
    with _opened(path) as (file, num_bytes):
        records = RecordReader(file, num_bytes)
        while (record := records.read()).kind != END:
            if record.kind == BLOCK:
                yield _block(record, bundle.manifest.kv)
        if records.digest != bundle.digest:
            raise BundleError(f"{path} was changed while it was being imported; import it again")


def renamed(turns: tuple[Turn, ...], kv: BundleModel, namespace: str) -> Mapping[BlockKey, BlockKey]:
    """Return, for each name that a block's parent can have in a bundle, its name in a namespace."""
    old, new = root_key(kv.fingerprint), root_key(kv.fingerprint, namespace)
    names = {old: new}
    pairs = zip(runs_of(turns, old, kv.block_size), runs_of(turns, new, kv.block_size), strict=True)
    for was, becomes in pairs:
        if was.key is not None and becomes.key is not None:
            names[was.key] = becomes.key
    return names


def _read_turns(records: RecordReader, manifest: Manifest) -> tuple[tuple[Turn, ...], Record]:
    """Return all turns, and the record behind them."""
    session_id = new_session_id()
    turns: list[Turn] = []
    turn_ids: list[TurnId] = []
    text_bytes = -records.position
    record = records.read()
    while record.kind == TURN:
        turn_ids.append(new_turn_id())
        turns.append(read_turn(record.header, record.body, session_id, turn_ids))
        if len(turns) > manifest.num_turns or text_bytes + records.position > MAX_TEXT_BYTES:
            raise BundleError("it has more turns than it says, or more text than can be read")
        record = records.read()
    if record.kind not in (BLOCK, END):
        raise BundleError(f"a {record.kind} record stands among the turns")
    if len(turns) != manifest.num_turns:
        raise BundleError(f"it says that it has {manifest.num_turns} turns, and has {len(turns)}")
    return tuple(turns), record


def _checked_name(block: BundleBlock, block_size: int, known: References) -> tuple[BlockKey, int]:
    """Return the key and the group of a block over which a path of the turns leads."""
    key = block.key
    is_full = len(block.token_ids) == block_size
    if not (key in known.keys if is_full else known.covers_tail(block.parent, block.token_ids)):
        raise BundleError("it has a block whose tokens are in none of its turns")
    return key, block.group


class _Block(Struct, frozen=True):
    num_tokens: Count
    group: Count
    parent: Digest


class _End(Struct, frozen=True):
    num_turns: Count
    num_blocks: Count


def _block(record: Record, kv: BundleModel) -> BundleBlock:
    read = read_header(_Block, record.header, "a block")
    num_tokens, layout = read.num_tokens, kv.layouts.get(read.group)
    if layout is None:
        raise BundleError(f"a block: there is no group {read.group}")
    if not 0 < num_tokens <= kv.block_size:
        raise BundleError(f"a block: num_tokens must be from 1 to {kv.block_size}")
    if len(record.body) != 4 * num_tokens + payload_bytes(layout, num_tokens):
        raise BundleError(f"a block: {len(record.body)} bytes are not those of {num_tokens} tokens")
    return BundleBlock(
        group=read.group,
        parent=BlockKey(bytes.fromhex(read.parent)),
        token_ids=tuple(from_u32le(record.body[: 4 * num_tokens])),
        payload=padded(record.body[4 * num_tokens :], layout, num_tokens),
    )


def _is(kind: str, record: Record) -> Record:
    if record.kind != kind:
        raise BundleError(f"a {record.kind} record stands where {kind} must")
    return record


@contextmanager
def _opened(path: Path) -> Iterator[tuple[BinaryIO, int]]:
    """Open a regular file; what goes wrong with it is said with its name."""
    try:
        # O_NONBLOCK: a named pipe must not hang the command.
        with open(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), "rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise BundleError("it is not a regular file")
            yield file, status.st_size
    except OSError as error:
        raise BundleError(f"{path} cannot be read: {error.strerror or error}") from error
    except BundleError as error:
        raise BundleError(f"{path} is refused: {error}") from error
