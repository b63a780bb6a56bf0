"""Wording of deletions: what they free and what stays."""

from collections.abc import Callable

from kvchat.app.session_service import Removed
from kvchat.errors import StorageError
from kvchat.session.branch_removal import BranchRemoval
from kvchat.text.figures import bytes_text, plural

OTHERS = "branches or sessions"
"""Who else may have what a branch has."""


def branch_words(plan: BranchRemoval) -> str:
    """Return which messages go with a branch, and which stay because other branches have them."""
    words = f"{plural(len(plan.doomed), 'message')} would be gone for good"
    if plan.num_shared:
        words += f"; {plural(plan.num_shared, 'message')} stay, since other branches share them"
    return words


def deletion_words(would: Removed, owners: str = "sessions") -> str:
    """Return what a deletion would free, and what would stay.

    Args:
        owners: who else may have it.
    """
    words = f"{plural(would.freed_blocks, 'block')} of KV ({bytes_text(would.freed_bytes)}) would be freed"
    if would.shared_blocks:
        shared = f"{plural(would.shared_blocks, 'block')} ({bytes_text(would.shared_bytes)})"
        words += f"; {shared} stay, since other {owners} share them"
    return words


def expected_words(count: Callable[[], Removed], owners: str = "sessions") -> str:
    """Return what a deletion would free, and what would stay; all of its KV where the cache cannot be used.

    Args:
        count: returns what would be freed.
        owners: who else may have it.
    """
    try:
        return deletion_words(count(), owners)
    except (StorageError, OSError) as error:
        again = "`kvchat cache gc` removes it once the cache can be used again"
        return f"its KV would stay on disk: {error}; {again}"
