"""Heading above a conversation, and the text of an empty one. Pure."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from kvchat.engine.api.engine_phase import EnginePhase
from kvchat.text.figures import plural
from kvchat.text.fit_text import fitted, one_line
from kvchat.ui.widgets.session_rows import title_of

if TYPE_CHECKING:
    from kvchat.chat.conversation import Conversation

_LEAST_TITLE = 12
_FIRST_LINES = {
    EnginePhase.LOADING: "The model is loading. You can type already.",
    EnginePhase.FAILED: "The engine has stopped. What was said is kept.\n/reload starts it again.",
}


def heading_text(conversation: "Conversation | None", title: str | None, width: int, note: str = "") -> str:
    """Return the title and the branch, the title cut where there is no room.

    Args:
        title: as stored, or that of a draft.
        note: what is special about the branch.
    """
    rest = ""
    if conversation is not None:
        title = title or title_of(conversation.session)
        rest = f"  ›  {one_line(conversation.branch.name)}{note}"
    return fitted(title or "new conversation", max(_LEAST_TITLE, width - len(rest))) + rest


def editing_text(costs: Sequence[str], width: int, key: str = "esc") -> str:
    """Return what stands above while an earlier message is changed.

    Args:
        costs: what sending it computes, in ever fewer words; none while that is not known.
    """
    title, end = "editing", f" · {key} gives up"
    texts = [f"{title} · {cost}{end}" for cost in costs] or [title + end]
    return next((text for text in texts if len(text) <= width), texts[-1])


def welcome_text(phase: EnginePhase, num_stored: int, key: str = "f1") -> str:
    first = _FIRST_LINES.get(phase, "Ask anything, or type / for commands")
    stored = f"{plural(num_stored, 'session')} stored · " if num_stored else ""
    return f"{first}\n\n{stored}{key} help"
