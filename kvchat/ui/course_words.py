"""What another course of a conversation costs, in words, before it is taken."""

from kvchat.chat import EditCost, Revision
from kvchat.ui.figures import count_text, plural
from kvchat.ui.plain_text import fitted, one_line

COSTLY_TOKENS = 512
"""An edit that computes this much is asked for once more."""

_EXCERPT_LEN = 54


def computing_words(cost: EditCost) -> str:
    """Return what an edit computes."""
    return f"computes {plural(cost.computed_tokens, 'token')}, {count_text(cost.reused_tokens)} reused"


def edit_words(cost: EditCost) -> str:
    """Return what an edit computes, and what it leaves behind."""
    left = f"{plural(cost.left_turns, 'message')} ({plural(cost.left_tokens, 'token')})"
    return f"{computing_words(cost)}; {left} from here on stay on the branch as it was"


def undo_words(revision: Revision, cost: EditCost) -> str:
    """Return what taking back costs, and where what is taken back can be found."""
    left = f"{plural(cost.left_turns, 'message')} ({plural(cost.left_tokens, 'token')})"
    return f"{_again_words(cost)}\n{left} stay on branch {one_line(revision.stays_on)}."


def drop_words(revision: Revision, cost: EditCost) -> str:
    """Return what leaving an exchange out costs, what follows it, and what stays as it was."""
    followed = f"{plural(len(revision.anew), 'message')} behind it" if revision.anew else "Nothing behind it"
    verb = "follow" if len(revision.anew) > 1 else "follows"
    return (
        f"{_again_words(cost)}\n{followed} {verb} on a branch of its own; "
        f"branch {one_line(revision.stays_on)} stays as it is."
    )


def excerpt(revision: Revision) -> str:
    """Return the first message that the new course is without."""
    return f"“{fitted(one_line(revision.dropped[0].text), _EXCERPT_LEN)}”"


def _again_words(cost: EditCost) -> str:
    reused = f"{plural(cost.reused_tokens, 'token')} reused"
    if not cost.computed_tokens:
        return f"Nothing to compute again: {reused}." if cost.reused_tokens else "Nothing to compute again."
    return f"{plural(cost.computed_tokens, 'token')} to compute again with your next message, {reused}."
