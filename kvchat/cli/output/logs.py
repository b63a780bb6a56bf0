"""The log file: what happened, never what was said."""

import logging
import os
import sys
from io import TextIOWrapper
from logging.handlers import RotatingFileHandler
from traceback import format_tb
from types import TracebackType

from kvchat.errors import StorageError
from kvchat.platform.key_file import key_path
from kvchat.platform.paths import Paths
from kvchat.platform.private_files import make_private, system_errors_as

_MAX_BYTES = 1 << 20
_KEPT_FILES = 2
ExceptionInfo = tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]

_FORMAT = "%(asctime)s %(process)d %(levelname)s %(name)s: %(message)s"


class _PrivateFileHandler(RotatingFileHandler):
    """Opens every file, rotated ones included, for its owner alone."""

    def _open(self) -> TextIOWrapper:
        descriptor = os.open(self.baseFilename, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        return TextIOWrapper(os.fdopen(descriptor, "ab", buffering=0), encoding="utf-8", write_through=True)


class _TerseFormatter(logging.Formatter):
    """Writes of exceptions where they came from and not what they say, which may quote a conversation."""

    def formatException(self, ei: ExceptionInfo) -> str:
        lines: list[str] = []
        error: BaseException | None = ei[1]
        while error is not None:
            lines += [*format_tb(error.__traceback__), type(error).__name__]
            error = error.__cause__ or error.__context__
        return "\n".join(lines)


def start_log(paths: Paths, *, verbose: bool = False) -> None:
    """Write the log of this process to its file, and to standard error if `verbose`.

    Raises:
        StorageError: the directory cannot be created.
    """
    root = logging.getLogger()
    advice = ". Choose another place with KVCHAT_HOME"
    with system_errors_as(StorageError, f"cannot create {paths.state_dir}", advice):
        make_private(paths.state_dir)
    handlers: list[logging.Handler] = [
        _PrivateFileHandler(paths.log_file, maxBytes=_MAX_BYTES, backupCount=_KEPT_FILES, delay=True)
    ]
    if verbose:
        handlers.append(logging.StreamHandler(sys.stderr))
    is_encrypted = key_path(paths.data_dir).exists()
    for handler in handlers:
        handler.setFormatter((_TerseFormatter if is_encrypted else logging.Formatter)(_FORMAT))
        root.addHandler(handler)
    logging.captureWarnings(True)
    logging.getLogger("kvchat").setLevel(logging.DEBUG if verbose else logging.INFO)
