"""Session choice: one that is named, the one used last, or a new one."""

from collections.abc import Mapping

from kvchat.errors import SessionNotFound, UsageError
from kvchat.session.store import SessionStore
from kvchat.session.tree import SessionId


def refuse_several(given: Mapping[str, bool]) -> None:
    """Raise UsageError if more than one of these ways was chosen."""
    chosen = [name for name, is_given in given.items() if is_given]
    if len(chosen) > 1:
        raise UsageError(f"{' and '.join(chosen)} contradict each other; choose one")


def last_used(store: SessionStore) -> SessionId:
    """Return the session that was used last.

    Raises: SessionNotFound: there is none.
    """
    summaries = store.list_sessions()
    if not summaries:
        raise SessionNotFound("there is no session to continue; ask without -c to begin one")
    return summaries[0].session.id
