"""What changing an earlier message costs, in words, before it is done."""

from kvchat.chat import EditCost
from kvchat.ui.figures import count_text, plural

COSTLY_TOKENS = 512
"""An edit that computes this much is asked for once more."""


def edit_words(cost: EditCost) -> str:
    """Return what an edit computes, and what it leaves behind."""
    computed = f"computes {plural(cost.computed_tokens, 'token')}, {count_text(cost.reused_tokens)} reused"
    left = f"{plural(cost.left_turns, 'message')} ({plural(cost.left_tokens, 'token')})"
    return f"{computed}; {left} from here on stay on the branch as it was"
