"""Where files lie in memory: tests that write thousands of them wait for the disk most of their time.

What a loss of power leaves is none of their business: that is replayed from recorded operations.
"""

import os
import shutil
from pathlib import Path

_IN_MEMORY = Path("/dev/shm")
_ROOM_BYTES = 256 << 20


def quick_place() -> Path | None:
    """Return a directory in memory; None where there is none, or no room in it."""
    if not os.access(_IN_MEMORY, os.W_OK) or shutil.disk_usage(_IN_MEMORY).free < _ROOM_BYTES:
        return None
    return _IN_MEMORY
