"""Wording of trust: where KV came from, and the result of verifying it."""

from kvchat.session.kv.provenance import Trust, is_imported, origin_of, trust_of
from kvchat.session.tree import Session, Turn
from kvchat.text.figures import count_text, plural

_MARKS = {Trust.OWN: "", Trust.UNVERIFIED: "?", Trust.SAMPLED: "?", Trust.DIFFERENT: "!", Trust.VERIFIED: "✓"}


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
