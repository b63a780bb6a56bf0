"""Path of an engine's socket, named by what the engine computes with.

A borrower looks for exactly the engine that it would load itself: another model, other files in the same
directory, another storage format, another cache, or other sessions where KV is saved, have other names. What
only costs time or room (budgets, threads) is the lender's affair.
"""

import os
import socket
import stat
import struct
from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path

from kvchat.app.ipc.wire import VERSION
from kvchat.engine.api.config import EngineConfig
from kvchat.errors import StorageError
from kvchat.platform.private_files import make_private

_MAX_PATH_BYTES = 100
"""The address of a socket has room for 104 bytes on macOS and 108 on Linux, the last of which is NUL."""
_IDENTITY_BYTES = 8
_SUFFIX = ".sock"
_DECIDING = ("device", "dtype", "weights", "adapter", "cache_format", "block_size", "max_context", "seed")


def identity_of(model_path: Path, config: EngineConfig) -> str:
    """Return the name of what an engine computes with: its files as they are now, and what shapes KV."""
    digest = blake2b(digest_size=_IDENTITY_BYTES, person=b"kvchat.lend")
    for line in _lines(model_path, config):
        digest.update(line.encode("utf-8", "surrogateescape") + b"\n")
    return digest.hexdigest()


def _lines(model_path: Path, config: EngineConfig) -> Iterator[str]:
    from importlib.metadata import version  # slow to import, and needed only once an engine is looked for

    # What is sent are the engine's own values, and another kvchat may have others.
    yield f"{VERSION} {version('kvchat')}"
    yield from (f"{name} {getattr(config, name)}" for name in _DECIDING)
    yield f"cache {config.cache_dir}"
    if config.cache_dir is not None:
        # A lender knows the sessions of its own store alone: it would save nothing for others, taking them
        # for deleted ones.
        yield f"owners {config.owners}"
    yield "sealed" if config.encryptor is not None else "plain"
    for path in (model_path, config.adapter):
        if path is not None:
            yield str(path.resolve())
            yield from _states(path)


def _states(path: Path) -> Iterator[str]:
    for file in sorted(path.iterdir()) if path.is_dir() else [path]:
        state = file.stat()
        yield f"{file.name} {state.st_size} {state.st_mtime_ns}"


def socket_path(runtime_dir: Path, identity: str) -> Path:
    """Return where the engine of this identity is lent; nothing is created."""
    return _directory(runtime_dir) / (identity + _SUFFIX)


def sockets(runtime_dir: Path) -> list[Path]:
    """Return the sockets of all engines that are lent, or were by processes that are gone."""
    return sorted(_directory(runtime_dir).glob(f"*{_SUFFIX}"))


def _directory(runtime_dir: Path) -> Path:
    """Return where sockets lie: elsewhere where their addresses would be too long."""
    longest = runtime_dir / ("0" * 2 * _IDENTITY_BYTES + _SUFFIX)
    if len(os.fsencode(longest)) <= _MAX_PATH_BYTES:
        return runtime_dir
    name = blake2b(os.fsencode(runtime_dir), digest_size=4).hexdigest()
    return Path("/tmp") / f"kvchat-{os.getuid()}-{name}"


def make_room(path: Path) -> None:
    """Create the directory of a socket, for its owner alone.

    Raises:
        StorageError: it cannot be created, or somebody else could reach into it.
    """
    try:
        make_private(path.parent)
    except OSError as error:
        raise StorageError(f"{error.filename or path.parent}: {error.strerror or error}") from error
    if not is_private(path.parent):
        raise StorageError(f"others can reach into {path.parent}: chmod 700 {path.parent}, or remove it")


def is_private(directory: Path) -> bool:
    """Return whether this is a directory, no link, of this user alone."""
    try:
        state = directory.lstat()
    except OSError:
        return False
    own = state.st_uid == os.getuid() and not state.st_mode & 0o077
    return own and stat.S_ISDIR(state.st_mode)


def is_own_user(connection: socket.socket) -> bool:
    """Return whether the other end runs as this user, as the kernel says.

    Where the kernel cannot be asked, the directory's mode alone keeps others out.
    """
    option = getattr(socket, "SO_PEERCRED", None)
    if option is None:
        return True
    _, uid, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, option, struct.calcsize("3i")))
    return bool(uid == os.getuid())
