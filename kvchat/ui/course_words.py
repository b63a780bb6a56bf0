"""What another course of a conversation costs, in words, before it is taken."""

from kvchat.chat import EditCost, Revision
from kvchat.ui.attachments import shown_message
from kvchat.ui.figures import count_text, plural
from kvchat.ui.plain_text import fitted, one_line

COSTLY_TOKENS = 512
"""An edit that computes this much is asked for once more."""

_EXCERPT_LEN = 54


def computing_words(cost: EditCost) -> str:
    """Return what an edit computes."""
    if not cost.is_known:
        return "what it computes is up to the server"
    return f"computes {plural(cost.computed_tokens, 'token')}, {count_text(cost.reused_tokens)} reused"


def edit_words(cost: EditCost) -> str:
    """Return what an edit computes, and what it leaves behind."""
    return f"{computing_words(cost)}; {_left_words(cost)} from here on stay on the branch as it was"


def undo_words(revision: Revision, cost: EditCost) -> str:
    """Return what taking back costs, and where what is taken back can be found; a line for each."""
    return _rows(
        *_cost_rows(cost),
        ("taken back", _left_words(cost)),
        ("kept", f"on branch {one_line(revision.stays_on)}"),
    )


def drop_words(revision: Revision, cost: EditCost) -> str:
    """Return what leaving an exchange out costs, what follows, and what stays; a line for each."""
    followed = f"{plural(len(revision.anew), 'message')}, on a branch of their own"
    return _rows(
        *_cost_rows(cost),
        ("following", followed if revision.anew else "nothing"),
        ("as it was", f"branch {one_line(revision.stays_on)}"),
    )


def excerpt(revision: Revision) -> str:
    """Return the first message that the new course is without."""
    return f"“{fitted(one_line(shown_message(revision.dropped[0].text)), _EXCERPT_LEN)}”"


def _left_words(cost: EditCost) -> str:
    tokens = f" ({plural(cost.left_tokens, 'token')})" if cost.is_known else ""
    return plural(cost.left_turns, "message") + tokens


def _cost_rows(cost: EditCost) -> tuple[tuple[str, str], ...]:
    if not cost.is_known:
        return (("computed again", "unknown"), ("reused", "unknown"))
    again = f"{plural(cost.computed_tokens, 'token')}, with your next message"
    return (
        ("computed again", again if cost.computed_tokens else "nothing"),
        ("reused", plural(cost.reused_tokens, "token")),
    )


def _rows(*rows: tuple[str, str]) -> str:
    return "\n".join(f"{name:<16}{value}" for name, value in rows)
