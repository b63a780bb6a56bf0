"""GGUF files by their place: the checkpoint made from one, found again while the file is the same file.

Knows nothing of torch: a file that was read before is found without it.
"""

import sys
from hashlib import blake2b
from pathlib import Path

from kvchat.engine.models.checkpoints.disk_budget import DiskBudget
from kvchat.engine.models.checkpoints.prepared import PREPARED_DIR, VERSION, MakeRoom, PreparedCheckpoints
from kvchat.engine.models.checkpoints.weight_digests import WeightDigests
from kvchat.errors import ModelUnreadable

_MAGIC = b"GGUF"
_DIGESTS_FILE = "weights.json"
_KEY_BYTES = 16


def checkpoint_of(path: Path, cache_dir: Path, room: DiskBudget) -> Path:
    """Return the directory of the checkpoint made from a GGUF file; makes it the first time.

    Args:
        room: blocks make it before it is written; other checkpoints go where all of them have none, since
            reading a file again takes minutes.

    Effect: may read every byte of the file; tells standard error how far it is, where that is a terminal.

    Raises:
        ModelUnreadable, UnsupportedModel: the file is damaged, or of a kind that is not read.
        StorageError: the checkpoint cannot be kept.
    """
    try:
        with open(path, "rb") as file:
            if file.read(len(_MAGIC)) != _MAGIC:
                raise ModelUnreadable(f"{path} is not a GGUF file. Download it again, or use `-m starter`.")
        digests = WeightDigests(cache_dir / _DIGESTS_FILE)
        digest = digests.digest(path)
    except OSError as error:
        raise ModelUnreadable(f"{path} cannot be read: {error.strerror or error}.") from error
    kept = PreparedCheckpoints(cache_dir / PREPARED_DIR, digests, room.disk_bytes)
    found = kept.get(_key(path, digest), lambda directory: _make(path, directory, room.make))
    digests.save()
    return found


def _key(path: Path, digest: str) -> str:
    """Return the name of what is made from a file and from the tokenizer that lies beside it."""
    beside = path.with_name("tokenizer.json")
    tokenizer = beside.read_bytes() if beside.is_file() else b""
    parts = f"gguf {VERSION} {digest} ".encode() + tokenizer
    return blake2b(parts, digest_size=_KEY_BYTES).hexdigest()


def _make(path: Path, directory: Path, make_room: MakeRoom) -> None:
    from kvchat.engine.models.checkpoints.gguf_file import open_gguf
    from kvchat.engine.models.checkpoints.gguf_to_hf import write_converted

    write_converted(open_gguf(path), directory, _report, make_room)
    if sys.stderr.isatty():
        print(end="\r\x1b[K", file=sys.stderr)


def _report(words: str) -> None:
    if sys.stderr.isatty():
        print(end=f"\r\x1b[K{words}", file=sys.stderr, flush=True)
