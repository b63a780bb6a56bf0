"""Wording of revisions: their cost and their effect, before they are made."""

from kvchat.chat.events import EditCost, Revision
from kvchat.engine.api.snapshot import CacheSnapshot
from kvchat.text.attached_files import shown_message
from kvchat.text.cache_usage import bytes_of, in_bytes
from kvchat.text.figures import bytes_text, count_text, plural
from kvchat.text.fit_text import fitted, one_line

COSTLY_TOKENS = 512
"""An edit that computes this much is asked for once more."""

_EXCERPT_LEN = 54


def computing_words(cost: EditCost) -> str:
    """Return what an edit computes."""
    if not cost.is_known:
        return "what it computes is up to the server"
    return f"computes {plural(cost.computed_tokens, 'token')}, {count_text(cost.reused_tokens)} reused"


def heading_words(cost: EditCost, snapshot: CacheSnapshot | None) -> tuple[str, ...]:
    """Return what an edit computes, with the bytes of it, and without them where they do not fit."""
    short = computing_words(cost)
    computed, reused = (in_bytes(num, snapshot) for num in (cost.computed_tokens, cost.reused_tokens))
    if not cost.is_known or not computed + reused:
        return (short,)
    tokens = plural(cost.computed_tokens, "token")
    return f"computes {tokens}{computed}, {count_text(cost.reused_tokens)} reused{reused}", short


def edit_words(cost: EditCost, snapshot: CacheSnapshot | None = None) -> str:
    """Return what an edit computes, and what it leaves behind; in bytes too, where a snapshot tells them."""
    words = f"{computing_words(cost)}; {_left_words(cost)} from here on stay on the branch as it was"
    of_bytes = _bytes_words(cost, snapshot)
    return f"{words}; on the device {of_bytes}" if of_bytes else words


def undo_words(revision: Revision, cost: EditCost, snapshot: CacheSnapshot | None = None) -> str:
    """Return what taking back costs, and where what is taken back can be found; a line for each."""
    num_bytes = bytes_of(cost.left_tokens, snapshot)
    of_bytes = f", {bytes_text(num_bytes)}" if num_bytes else ""
    return _rows(
        *_cost_rows(cost, snapshot),
        ("taken back", _left_words(cost) + of_bytes),
        ("original", f"kept on {one_line(revision.stays_on)}"),
    )


def drop_words(revision: Revision, cost: EditCost, snapshot: CacheSnapshot | None = None) -> str:
    """Return what leaving an exchange out costs, what follows, and what stays; a line for each."""
    followed = f"{plural(len(revision.anew), 'message')}, on a branch of their own"
    return _rows(
        *_cost_rows(cost, snapshot),
        ("following", followed if revision.anew else "nothing"),
        ("original kept", f"on {one_line(revision.stays_on)}"),
    )


def changed_words(branch: str, revision: Revision, cost: EditCost, snapshot: CacheSnapshot | None) -> str:
    """Return where a conversation is now, and what of it is shared with the branch that it was on."""
    here, there = one_line(branch), one_line(revision.stays_on)
    shared = plural(cost.reused_tokens, "token") + in_bytes(cost.reused_tokens, snapshot)
    reuse = f", which reuses {shared}" if cost.reused_tokens else ""
    return f"on branch {here}{reuse} · original kept on {there}"


def excerpt(revision: Revision) -> str:
    """Return the first message that the revision leaves out."""
    return f"“{fitted(one_line(shown_message(revision.dropped[0].text)), _EXCERPT_LEN)}”"


def _left_words(cost: EditCost) -> str:
    tokens = f" ({plural(cost.left_tokens, 'token')})" if cost.is_known else ""
    return plural(cost.left_turns, "message") + tokens


def _cost_rows(cost: EditCost, snapshot: CacheSnapshot | None) -> tuple[tuple[str, str], ...]:
    if not cost.is_known:
        return (("computed again", "unknown"), ("reused", "unknown"))
    again = f"{plural(cost.computed_tokens, 'token')}, with your next message"
    rows = (
        ("computed again", again if cost.computed_tokens else "nothing"),
        ("reused", plural(cost.reused_tokens, "token")),
    )
    of_bytes = _bytes_words(cost, snapshot)
    return (*rows, ("on the device", of_bytes)) if of_bytes else rows


def _bytes_words(cost: EditCost, snapshot: CacheSnapshot | None) -> str:
    """Return what a revision takes on the device; nothing where that is not known."""
    computed, reused = (bytes_of(num, snapshot) for num in (cost.computed_tokens, cost.reused_tokens))
    if not cost.is_known or computed is None or reused is None:
        return ""
    return f"{bytes_text(computed)} computed, {bytes_text(reused)} reused"


def _rows(*rows: tuple[str, str]) -> str:
    return "\n".join(f"{name:<16}{value}" for name, value in rows)
