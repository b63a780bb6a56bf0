"""Bundle writer, record by record: at most one block is in memory."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from msgspec import to_builtins

from kvchat.engine.api.ids import BlockKey
from kvchat.errors import StorageError
from kvchat.platform.private_files import NO_ROOM, new_private
from kvchat.session.bundle.container import BLOCK, END, META, TURN, RecordWriter
from kvchat.session.bundle.manifest import Manifest, trimmed
from kvchat.session.bundle.turn_record import turn_body, turn_header
from kvchat.session.tree import Turn

Progress = Callable[[int], None]
"""Is told how many bytes of the file are written or read so far."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceBlock:
    """One group's bytes of a block or tail, of the payload's full size."""

    group: int
    parent: BlockKey
    token_ids: bytes
    payload: bytes

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids) // 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """What a bundle holds. `digest` names it."""

    num_turns: int
    num_blocks: int
    num_bytes: int
    digest: bytes


def write_bundle(
    write: Callable[[bytes], object],
    manifest: Manifest,
    turns: Sequence[Turn],
    blocks: Iterable[SourceBlock],
    progress: Progress | None = None,
) -> Written:
    """Write a bundle; `write` takes all of the bytes that it is given.

    Args:
        turns: a parent before its children.
        blocks: each (group, name) once; every one lies on a path of the turns.
    """
    records = RecordWriter(write)
    records.write(META, to_builtins(manifest))
    numbers = {turn.id: number for number, turn in enumerate(turns)}
    for turn in turns:
        records.write(TURN, turn_header(turn, numbers), turn_body(turn))
    num_blocks = 0
    for block in blocks:
        assert manifest.kv is not None
        payload = trimmed(block.payload, manifest.kv.layouts[block.group], block.num_tokens)
        header = {"group": block.group, "parent": block.parent.hex(), "num_tokens": block.num_tokens}
        records.write(BLOCK, header, block.token_ids + payload)
        num_blocks += 1
        if progress is not None:
            progress(records.num_bytes)
    records.write(END, {"num_turns": len(turns), "num_blocks": num_blocks})
    return Written(
        num_turns=len(turns), num_blocks=num_blocks, num_bytes=records.num_bytes, digest=records.digest
    )


@contextmanager
def new_file(path: Path) -> Iterator[Callable[[bytes], object]]:
    """Give a function that writes to a file that appears under its name whole, or not at all.

    Effect: the file is its owner's alone, and durable at the end of the block.

    Raises:
        StorageError: disk full, no permission; nothing is left behind.
    """
    try:
        with new_private(path) as descriptor, open(descriptor, "wb", closefd=False) as file:
            yield file.write
    except OSError as error:
        remedy = (
            "free some space, or choose another place" if error.errno in NO_ROOM else "choose another place"
        )
        raise StorageError(f"{path} cannot be written: {error.strerror or error}; {remedy}") from error
