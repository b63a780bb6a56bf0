"""Heading above a conversation: its title and branch, and the model. Pure."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.cells import cell_len

from kvchat.engine.api.snapshot import CacheSnapshot
from kvchat.text.answer_footer import SEPARATOR
from kvchat.text.fit_text import fitted, one_line
from kvchat.ui.widgets.session_rows import title_of

if TYPE_CHECKING:
    from kvchat.chat.conversation import Conversation

_LEAST_TITLE = 12
_USUAL_TITLE = 24
"""Of a title so much is shown before anything else takes its place."""
_GAP = 3


def heading_text(
    conversation: "Conversation | None",
    title: str | None,
    width: int,
    note: str = "",
    model: Sequence[str] = (),
) -> str:
    """Return the title and the branch, the title cut where there is no room; the model where there is some.

    Args:
        title: as stored, or that of a draft.
        note: what is special about the conversation.
        model: its name first, then what else may be said of it.
    """
    rest = note
    if conversation is not None:
        title = title or title_of(conversation.session)
        rest = f"  ›  {one_line(conversation.branch.name)}{note}"
    title = title or "new conversation"
    room = width - _GAP - min(_USUAL_TITLE, cell_len(title)) - cell_len(rest)
    while model and cell_len(SEPARATOR.join(model)) > room:
        model = model[:-1]
    right = SEPARATOR.join(model)
    left_width = width - (cell_len(right) + _GAP if right else 0)
    left = fitted(title, max(_LEAST_TITLE, left_width - cell_len(rest))) + rest
    return left + " " * (width - cell_len(left) - cell_len(right)) + right if right else left


def model_parts(snapshot: CacheSnapshot | None) -> tuple[str, ...]:
    """Return the model's name, the format of its KV, and that of its weights; nothing while it loads."""
    if snapshot is None:
        return ()
    name = one_line(snapshot.model.rstrip("/").rpartition("/")[2])
    weights = (f"{snapshot.weights} weights",) if snapshot.weights else ()
    return (name, f"{snapshot.cache_format} KV", *weights)


def editing_text(number: int, costs: Sequence[str], width: int, key: str = "esc") -> str:
    """Return what stands above while an earlier message is changed.

    Args:
        number: which of the person's messages it is.
        costs: what sending it computes, in ever fewer words; none while that is not known.
    """
    title, end = f"editing message {number}", f" · {key} cancels"
    texts = [*(f"{title} · {cost}{end}" for cost in costs), title + end]
    return next((text for text in texts if len(text) <= width), texts[-1])
