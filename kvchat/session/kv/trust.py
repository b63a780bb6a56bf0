"""Trust in a session's KV: its origin, and what verification found."""

from enum import StrEnum

from kvchat.session.kv.origin import origin_of
from kvchat.session.tree import Session, Verdict


class Trust(StrEnum):
    OWN = "own"
    """Computed here."""
    UNVERIFIED = "unverified"
    """Came in a bundle, and nobody has looked at it."""
    SAMPLED = "sampled"
    """Came in a bundle; what was looked at agrees, the rest was not looked at."""
    DIFFERENT = "different"
    """Some of it was not what is computed here, and was set aside."""
    VERIFIED = "verified"
    """All of it was computed again and agrees."""


def is_imported(session: Session) -> bool:
    """Whether a session's KV came in a bundle, and not all of it has been computed again."""
    return bool(session.namespace) and origin_of(session.namespace) is None


def trust_of(session: Session) -> Trust:
    found = session.verification
    if found is not None and found.verdict is Verdict.DIFFERENT:
        return Trust.DIFFERENT
    if is_imported(session):
        return Trust.UNVERIFIED if found is None else Trust.SAMPLED
    return Trust.VERIFIED if found is not None and found.verdict is Verdict.SAME else Trust.OWN
