"""Wording of a revision's cost in tokens and bytes. Bytes are those of whole blocks on the device."""

from collections import Counter
from collections.abc import Sequence
from math import ceil

from kvchat.chat.events import EditCost, Revision
from kvchat.engine.api.cache_format import parse_cache_format
from kvchat.engine.api.inspection import InspectedBlock
from kvchat.engine.api.loss import GaugeReport
from kvchat.engine.api.snapshot import CacheSnapshot, Tier
from kvchat.engine.api.view import SHADOW
from kvchat.errors import UsageError
from kvchat.session.kv.provenance import origin_of
from kvchat.session.tree import Session
from kvchat.text.attachments import shown_message
from kvchat.text.figures import bytes_text, count_text, plural
from kvchat.text.plain_text import fitted, one_line


def room_words(snapshot: CacheSnapshot, context_len: int) -> tuple[int, str]:
    """Return how many more tokens the conversation on screen can have, and before what.

    The context's end comes first where it is nearer than the end of the free blocks. Then blocks give way
    that are kept for nobody: to host memory if there is any, else they are given up. Where none are kept,
    other conversations leave the device, and where there are none either, the cache is full.
    """
    left = max(0, snapshot.max_context - context_len)
    if left <= snapshot.room_tokens:
        return left, "before the context is full"
    if any(group.cached_blocks for group in snapshot.groups):
        host = next((tier for tier in snapshot.tiers if tier.tier is Tier.HOST), None)
        to_host = host is not None and host.total_bytes != 0
        return (
            snapshot.room_tokens,
            f"before kept blocks {'move to host memory' if to_host else 'are given up'}",
        )
    if len(snapshot.sequences) > 1:
        return snapshot.room_tokens, "before other branches leave the device"
    return snapshot.room_tokens, "before the cache is full"


_FASTEST_FIRST = (Tier.DEVICE, Tier.HOST, Tier.DISK)
_WHERE = {Tier.DEVICE: "on the device", Tier.HOST: "in host memory", Tier.DISK: "on disk"}


def bytes_of(num_tokens: int, snapshot: CacheSnapshot | None) -> int | None:
    """Return what a branch of this length takes on the device; None while that is not known."""
    if snapshot is None:
        return None
    size = snapshot.block_size
    total = 0
    for group in snapshot.groups:
        blocks = ceil(num_tokens / size)
        if group.window is not None:
            blocks = min(blocks, ceil(group.window / size) + 1)
        total += blocks * group.block_bytes
    return total


def in_bytes(num_tokens: int, snapshot: CacheSnapshot | None) -> str:
    """Return what so many tokens take on the device, in brackets; nothing where it is not known."""
    num_bytes = bytes_of(num_tokens, snapshot) if num_tokens else None
    return f" ({bytes_text(num_bytes)})" if num_bytes else ""


def price_words(cost: EditCost, snapshot: CacheSnapshot | None) -> str:
    """Return what is shared and what is computed."""
    of_bytes = in_bytes(cost.reused_tokens, snapshot)
    computed = plural(cost.computed_tokens, "token") if cost.computed_tokens else "nothing"
    return f"shares {count_text(cost.reused_tokens)} tokens{of_bytes} · computes {computed}"


def tier_words(blocks: Sequence[InspectedBlock]) -> str:
    """Return where the blocks of a path are, with the tokens in each tier where they are in several; a block
    counts where the slowest of its groups has it.
    """
    tokens: Counter[Tier] = Counter()
    for block in blocks:
        if tiers := [place.tier for place in block.places if place.tier is not None]:
            tokens[max(tiers, key=_FASTEST_FIRST.index)] += len(block.token_ids)
    found = [tier for tier in _FASTEST_FIRST if tokens[tier]]
    if len(found) < 2:
        return "".join(f" {_WHERE[tier]}" for tier in found)
    return ": " + ", ".join(f"{count_text(tokens[tier])} {_WHERE[tier]}" for tier in found)


def reach_words(
    cost: EditCost,
    snapshot: CacheSnapshot | None,
    blocks: Sequence[InspectedBlock] = (),
    loaded_bytes: int = 0,
) -> str:
    """Return what of a conversation that was opened is there, and what must be computed or is not known.

    Args:
        blocks: those of its path.
        loaded_bytes: came up from a slower tier since it was asked for.
    """
    total = cost.reused_tokens + cost.computed_tokens
    if not total:
        return ""
    of_bytes = in_bytes(cost.reused_tokens, snapshot)
    rest = f"; {count_text(cost.computed_tokens)} to compute" if cost.computed_tokens > 1 else ""
    came = f"; {bytes_text(loaded_bytes)} loaded just now" if loaded_bytes else ""
    kept = f"{count_text(cost.reused_tokens)} of {plural(total, 'token')} are kept{of_bytes}"
    return f"{kept}{tier_words(blocks)}{came}{rest}"


def is_shadow(cache_format: str) -> bool:
    """Whether a format stores exact blocks and looks at them through a shadow. Pure.

    Raises:
        ConfigError: there is no such format.
    """
    view = parse_cache_format(cache_format).view
    return view is not None and view.rule == SHADOW


def require_exact_blocks(session: Session) -> None:
    """Refuse a session whose stored KV is not what was computed.

    Raises:
        UsageError: it was converted.
    """
    origin = origin_of(session.namespace)
    if origin is not None:
        raise UsageError(
            f"its KV was converted to {origin.cache_format}, and a shadow is made from exact KV; go back "
            "first: /cache format exact"
        )


def shadow_cost(report: GaugeReport) -> str:
    """Return what a shadow takes beside a conversation's blocks, and what it loses on its answers."""
    (found,) = report.formats
    loss = found.loss
    return (
        f"{bytes_text(report.exact_bytes)} of blocks stay as they are, and up to"
        f" {bytes_text(found.num_bytes - report.exact_bytes)} come beside them; of the last"
        f" {plural(loss.num_tokens, 'token')} of answers {100 * loss.agreement:.1f} % would be the same,"
        f" at a divergence of {loss.divergence:.2g}"
    )


COSTLY_TOKENS = 512
"""An edit that computes this much is asked for once more."""

_EXCERPT_LEN = 54


def computing_words(cost: EditCost) -> str:
    """Return what an edit computes."""
    if not cost.is_known:
        return "what it computes is up to the server"
    return f"computes {plural(cost.computed_tokens, 'token')}, {count_text(cost.reused_tokens)} reused"


def heading_words(cost: EditCost, snapshot: CacheSnapshot | None) -> tuple[str, ...]:
    """Return what an edit computes, with the bytes of it, and without them for where there is no room."""
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
        ("kept", f"on branch {one_line(revision.stays_on)}"),
    )


def drop_words(revision: Revision, cost: EditCost, snapshot: CacheSnapshot | None = None) -> str:
    """Return what leaving an exchange out costs, what follows, and what stays; a line for each."""
    followed = f"{plural(len(revision.anew), 'message')}, on a branch of their own"
    return _rows(
        *_cost_rows(cost, snapshot),
        ("following", followed if revision.anew else "nothing"),
        ("as it was", f"branch {one_line(revision.stays_on)}"),
    )


def changed_words(branch: str, revision: Revision, cost: EditCost, snapshot: CacheSnapshot | None) -> str:
    """Return where a conversation is now, and what of it is shared with the branch that it was on."""
    here, there = one_line(branch), one_line(revision.stays_on)
    shared = plural(cost.reused_tokens, "token") + in_bytes(cost.reused_tokens, snapshot)
    kept = f", which reuses {shared}" if cost.reused_tokens else ""
    return f"on branch {here}{kept}; all stays as it was on {there}: /switch {there}"


def excerpt(revision: Revision) -> str:
    """Return the first message that the new course is without."""
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
    """Return what a course takes on the device; nothing where that is not known."""
    computed, reused = (bytes_of(num, snapshot) for num in (cost.computed_tokens, cost.reused_tokens))
    if not cost.is_known or computed is None or reused is None:
        return ""
    return f"{bytes_text(computed)} computed, {bytes_text(reused)} reused"


def _rows(*rows: tuple[str, str]) -> str:
    return "\n".join(f"{name:<16}{value}" for name, value in rows)
