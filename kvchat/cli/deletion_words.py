"""What a deletion would free, and what would stay, in words."""

from kvchat.cli.removal import Removed
from kvchat.ui.figures import bytes_text, plural


def deletion_words(would: Removed) -> str:
    """Return what a deletion would free, and what would stay."""
    words = f"{plural(would.freed_blocks, 'block')} of KV ({bytes_text(would.freed_bytes)}) would be freed"
    if would.shared_blocks:
        shared = f"{plural(would.shared_blocks, 'block')} ({bytes_text(would.shared_bytes)})"
        words += f"; {shared} stay, since other sessions share them"
    return words
