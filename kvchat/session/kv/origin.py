"""Origin of a session's KV, as its namespace records it, and how far that KV can be relied on.

A converted block holds what was computed exactly and quantized later. What is computed behind it depends on
where that happened, so each conversion has a namespace of its own: `int4<-exact:FINGERPRINT:NONCE`.
"""

import re
import secrets
from enum import StrEnum

from kvchat.platform.values import dataclass
from kvchat.session.tree import Session, Verdict

_NAMESPACE = re.compile(r"(?P<to>.+)<-(?P<source>[^<:]+):(?P<fingerprint>[0-9a-f]{64}):(?P<nonce>[0-9a-f]+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """One conversion.

    Args:
        cache_format: what the blocks were converted to.
        source: the format that they were computed in.
        fingerprint: in hex, that of the model with `cache_format`.
        nonce: apart from all other conversions.
    """

    cache_format: str
    source: str
    fingerprint: str
    nonce: str

    @property
    def namespace(self) -> str:
        return f"{self.cache_format}<-{self.source}:{self.fingerprint}:{self.nonce}"


def new_origin(cache_format: str, source: str, fingerprint: str) -> Origin:
    """Return a conversion that differs from every other one."""
    return Origin(
        cache_format=cache_format, source=source, fingerprint=fingerprint, nonce=secrets.token_hex(8)
    )


def origin_of(namespace: str) -> Origin | None:
    """Return the conversion that a namespace tells of; None: of none."""
    found = _NAMESPACE.fullmatch(namespace)
    if found is None:
        return None
    return Origin(
        cache_format=found["to"],
        source=found["source"],
        fingerprint=found["fingerprint"],
        nonce=found["nonce"],
    )


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
