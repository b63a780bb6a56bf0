"""Tokens of a conversation that the model wrote."""

from collections.abc import Sequence

from kvchat.session.tree import Role, Turn, live_part


def answer_positions(path: Sequence[Turn]) -> tuple[int, ...]:
    """Return the positions of the answers' tokens, among all that the model has seen of a path (root first).

    What a turn without ids would have is not counted, nor the very first token, which follows from nothing.
    """
    found: list[int] = []
    start = 0
    for turn in live_part(path):
        end = start + len(turn.token_ids or ())
        if turn.role is Role.ASSISTANT:
            found += range(max(start, 1), end)
        start = end
    return tuple(found)
