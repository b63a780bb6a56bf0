"""Checkpoints made once from others and kept, so that the next start maps them: quantized, or expanded.

One directory each, named by all that its content follows from; it is whole, or not there at all. None holds
a truth: whoever removes one loses time.
"""

import fcntl
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from functools import partial
from hashlib import blake2b
from pathlib import Path

from kvchat.engine.models.checkpoints.model_directory_check import has_fp8_blocks
from kvchat.engine.models.checkpoints.weight_digests import WeightDigests
from kvchat.engine.models.fingerprint import Checkpoint, read_checkpoint
from kvchat.errors import StorageError
from kvchat.platform.private_files import make_private, sync

QUANTIZED = {"int8": 8, "int4": 4}
"""Names of the forms in which weights are quantized here, and the bits of one code."""
EXPANDED = "expanded"
"""What a checkpoint of 8-bit floats in blocks becomes before anything else."""
PREPARED_DIR = "weights"
"""In the cache directory."""
VERSION = 2
"""Of how they are made and written."""
WEIGHTS_FILE = "model.safetensors"
_MADE_FILE = "made.json"
_KEY_BYTES = 16

Make = Callable[[Path], None]
"""Fills a directory."""
MakeRoom = Callable[[int], None]
"""Lets others go from the disk, where there is a limit, before so many bytes are written."""


class PreparedCheckpoints:
    """Prepared checkpoints in one directory, which several processes may use at once."""

    def __init__(self, directory: Path, digests: WeightDigests, limit_bytes: int | None) -> None:
        """Args:
        limit_bytes: most bytes of all of them, of which the one in use is never removed; None: no limit.
        """
        self._directory = directory
        self.digests = digests
        self._limit_bytes = limit_bytes

    def get(self, key: str, make: Make) -> Path:
        """Return the checkpoint of a key; makes it if it is not there, or is not what was written.

        Raises: StorageError: it cannot be written.
        """
        path = self._directory / key
        try:
            make_private(self._directory)
            with self._locked(key):
                if not self._is_whole(path):
                    self._make(path, make)
                os.utime(path)
            self._make_room(path)
        except OSError as error:
            raise StorageError(
                f"The prepared weights cannot be kept in {self._directory}: {error.strerror or error}. "
                "Free some space, choose another cache directory, or use --weights auto."
            ) from error
        return path

    def find(self, key: str) -> Path | None:
        """Return the checkpoint of a key if it is there, without looking at its bytes."""
        path = self._directory / key
        return path if (path / _MADE_FILE).is_file() else None

    def _is_whole(self, path: Path) -> bool:
        try:
            made = json.loads((path / _MADE_FILE).read_bytes())
            return bool(made["digests"] == self._digests_in(path))
        except (OSError, ValueError, TypeError, LookupError):
            return False

    def _digests_in(self, path: Path) -> dict[str, str]:
        return {file.name: self.digests.digest(file) for file in sorted(path.glob("*.safetensors"))}

    def _make(self, path: Path, make: Make) -> None:
        beginning = path.with_name(f".{path.name}.new")
        shutil.rmtree(beginning, ignore_errors=True)  # of a process that was killed
        shutil.rmtree(path, ignore_errors=True)
        beginning.mkdir(mode=0o700)
        try:
            make(beginning)
            made = {"digests": self._digests_in(beginning)}
            (beginning / _MADE_FILE).write_text(json.dumps(made), encoding="utf-8")
            for file in beginning.iterdir():
                file.chmod(0o600)
                sync(file)
            sync(beginning)
            beginning.rename(path)
            sync(self._directory)
        except BaseException:
            shutil.rmtree(beginning, ignore_errors=True)
            raise

    def _make_room(self, kept: Path) -> None:
        """Remove others, longest unused first. Whoever has one mapped keeps its bytes."""
        if self._limit_bytes is None:
            return
        others = sorted(
            (path for path in _entries(self._directory) if path != kept), key=lambda p: p.stat().st_mtime
        )
        num_bytes = prepared_bytes(self._directory)
        for path in others:
            if num_bytes <= self._limit_bytes:
                return
            num_bytes -= _num_bytes(path)
            shutil.rmtree(path, ignore_errors=True)

    @contextmanager
    def _locked(self, key: str) -> Iterator[None]:
        """Let one process make a checkpoint while others that want it wait."""
        file = self._directory / f"{key}.lock"
        descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)


def prepared_bytes(directory: Path) -> int:
    """Return how much a directory of prepared checkpoints holds; 0 where that cannot be told."""
    with suppress(OSError):
        return sum(_num_bytes(path) for path in _entries(directory))
    return 0


def elsewhere(cache_dir: Path) -> Callable[[], int]:
    """Return what says how much prepared weights take of the disk limit now."""
    return partial(prepared_bytes, cache_dir / PREPARED_DIR)


def blocks_limit(disk_bytes: int | None, cache_dir: Path) -> int | None:
    """Return what prepared weights leave of a disk limit for blocks; None: there is no limit."""
    return None if disk_bytes is None else max(0, disk_bytes - prepared_bytes(cache_dir / PREPARED_DIR))


def key_of(checkpoint: Checkpoint, weights: str, dtype: str) -> str:
    """Return the name of what is prepared from a checkpoint."""
    parts = asdict(checkpoint) | {"as": weights, "dtype": dtype, "version": VERSION}
    canonical = json.dumps(parts, sort_keys=True, separators=(",", ":")).encode()
    return blake2b(canonical, digest_size=_KEY_BYTES).hexdigest()


def copy_if_there(source: Path, directory: Path, *names: str) -> None:
    for name in names:
        with suppress(FileNotFoundError):
            shutil.copyfile(source / name, directory / name)


def _entries(directory: Path) -> list[Path]:
    return [path for path in directory.iterdir() if path.is_dir()] if directory.is_dir() else []


def _num_bytes(path: Path) -> int:
    with suppress(OSError):
        return sum(file.stat().st_size for file in path.iterdir())
    return 0


def find_prepared(
    model_dir: Path, adapter_dir: Path | None, weights: str, dtype: str, kept: PreparedCheckpoints
) -> Checkpoint:
    """Return the checkpoint that is loaded for a model: its own, or what was made of it already.

    Where nothing was made yet, the answer is the nearest there is, and rightly differs.

    Raises: ModelUnreadable: config or weights are missing.
    """
    digests = kept.digests
    own = read_checkpoint(model_dir, adapter_dir, digests)
    if has_fp8_blocks(own.config):
        plain = read_checkpoint(model_dir, None, digests)
        if (expanded := kept.find(key_of(plain, EXPANDED, "auto"))) is not None:
            own = read_checkpoint(expanded, adapter_dir, digests)
    if weights in QUANTIZED and (found := kept.find(key_of(own, weights, dtype))) is not None:
        return read_checkpoint(found, None, digests)
    return own
