"""Views that have written blocks into a cache directory: one empty file each.

Over a view, names of blocks descend from the view and the session, and not from token ids alone. Who removes
a session's blocks, or those of none, has to know of which views there may be any.
"""

import os
from contextlib import suppress
from pathlib import Path

from kvchat.engine.api.view import View, is_view, parse_view
from kvchat.errors import ConfigError, StorageError
from kvchat.platform.directories import make_private

_DIRECTORY = "views"


def note_view(cache_dir: Path, view: View) -> None:
    """Note that blocks are going to be computed over a view.

    Raises:
        StorageError: it cannot be written.
    """
    directory = cache_dir / _DIRECTORY
    try:
        make_private(directory)
        (directory / str(view)).touch(mode=0o600)
    except OSError as error:
        raise StorageError(f"cannot write {directory}: {error.strerror}") from error


def used_views(cache_dir: Path) -> tuple[View, ...]:
    """Return the views that were noted, in the order of their names. Files of other names say nothing.

    Raises:
        StorageError: it cannot be read, so that there may be any.
    """
    found: list[View] = []
    directory = cache_dir / _DIRECTORY
    try:
        names = sorted(os.listdir(directory))
    except (FileNotFoundError, NotADirectoryError):
        return ()
    except OSError as error:
        raise StorageError(f"cannot read {directory}: {error.strerror}; check its permissions") from error
    for name in names:
        if is_view(name):
            with suppress(ConfigError):
                found.append(parse_view(name))
    return tuple(found)
