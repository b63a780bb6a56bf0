"""Wording of trust in imported KV, and of verification results."""

from kvchat.engine.api.server_cache import ServerCache
from kvchat.session.kv.provenance import Trust, is_imported, origin_of, trust_of
from kvchat.session.tree import Session, Turn
from kvchat.text.figures import count_text, plural, short_count_text

_MARKS = {
    Trust.OWN: "",
    Trust.UNVERIFIED: "?",
    Trust.SAMPLED: "?",
    Trust.DIFFERENT: "!",
    Trust.VERIFIED: "✓",
}


def trust_mark(session: Session) -> str:
    """Return one sign for a list, nothing where all was computed here and nobody has looked."""
    return _MARKS[trust_of(session)]


def trust_words(session: Session) -> str:
    """Return in a few words where a session's KV came from and what was found of it; empty if it is own."""
    found = session.verification
    if (conversion := origin_of(session.namespace)) is not None:
        return f"KV converted to {conversion.cache_format}"
    if found is None:
        return "imported KV, not verified" if is_imported(session) else ""
    origin = "imported KV" if is_imported(session) else "KV"
    match trust_of(session):
        case Trust.DIFFERENT:
            return f"{origin}, wrong in part" if is_imported(session) else "KV wrong in part, set aside"
        case Trust.VERIFIED:
            return "KV verified"
    return f"{origin}, {count_text(found.num_blocks)} of {plural(found.of_blocks, 'block')} verified"


def exactness_words(turn: Turn, session: Session | None) -> str:
    """Return what an answer can be held to in its session; None: one whose KV was computed here."""
    if session is None or not is_imported(session):
        return "exact" if turn.exact else "approximate"
    match trust_of(session):
        case Trust.SAMPLED:
            return "on imported KV, verified in part"
        case Trust.DIFFERENT:
            return "on imported KV, wrong in part"
    return "on imported KV, not verified"


UNTOLD = "unknown"


def share_words(share: float | None) -> str:
    return UNTOLD if share is None else f"{100 * share:.0f} %"


def reuse_words(served: ServerCache, *, short: bool = False) -> str:
    """Return what its prefix cache found of what it was asked for, since the server started."""
    hit, asked = served.hit_tokens, served.asked_tokens
    if hit is None or asked is None:
        return share_words(served.hit_rate)
    count = short_count_text if short else count_text
    share = f" · {share_words(served.hit_rate)}" if asked else ""
    return f"{count(hit)} of {count(asked)}{share}"


def request_words(served: ServerCache) -> str:
    """Return how many requests it computes, of everybody, and how many wait."""
    if served.num_running is None and served.num_waiting is None:
        return UNTOLD
    counts = ((served.num_running, "running"), (served.num_waiting, "waiting"))
    return ", ".join(f"{UNTOLD if count is None else count_text(count)} {what}" for count, what in counts)
