"""Namespaces of block keys: blocks shared by all with the same beginning, or under a view by one session."""

from collections.abc import Sequence

from kvchat.engine.api.namespace import Namespace
from kvchat.session.tree import Role, Session, Turn, live_part


def namespace_of(session: Session, path: Sequence[Turn], prompt_len: int | None = None) -> str:
    """Return the namespace of a request on a path, root first.

    Args:
        prompt_len: tokens before the answer that is asked for; None: none is.
    """
    starts = [start for start in answer_starts(path) if start and (prompt_len is None or start < prompt_len)]
    if prompt_len:
        starts.append(prompt_len)
    return str(Namespace(shared=session.namespace, owner=session.id, answer_starts=tuple(starts)))


def answer_starts(path: Sequence[Turn]) -> tuple[int, ...]:
    """Return where answers begin in the token ids of a path, as far as ids are known."""
    starts: list[int] = []
    length = 0
    for turn in live_part(path):
        if turn.token_ids is None or not turn.has_ids:
            break
        if turn.role is Role.ASSISTANT and (not starts or starts[-1] < length):
            starts.append(length)
        length += len(turn.token_ids)
    return tuple(starts)
