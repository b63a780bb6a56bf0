"""Provenance of a session's KV: its namespace, a conversion that it records, and how far it is trusted."""

import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from kvchat.engine.api.namespace import Namespace
from kvchat.session.tree import Role, Session, Turn, Verdict, live_part

_NAMESPACE = re.compile(
    r"(?P<cache_format>.+)<-(?P<source>[^<:]+):(?P<fingerprint>[0-9a-f]{64}):(?P<nonce>[0-9a-f]+)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """One conversion.

    Args:
        cache_format: what the blocks were converted to.
        source: the format that they were computed in.
        fingerprint: in hex, that of the model with `cache_format`.
        nonce: tells it from all other conversions.
    """

    cache_format: str
    source: str
    fingerprint: str
    nonce: str = field(default_factory=lambda: secrets.token_hex(8))

    @property
    def namespace(self) -> str:
        return f"{self.cache_format}<-{self.source}:{self.fingerprint}:{self.nonce}"


def origin_of(namespace: str) -> Origin | None:
    """Return the conversion that a namespace tells of; None: of none."""
    found = _NAMESPACE.fullmatch(namespace)
    return None if found is None else Origin(**found.groupdict())


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


def namespace_of(session: Session, path: Sequence[Turn], prompt_len: int | None = None) -> str:
    """Return the namespace of a request on a path, root first.

    Args:
        prompt_len: tokens before the answer that is asked for; None: none is.
    """
    starts = [start for start in answer_starts(path) if start and (prompt_len is None or start < prompt_len)]
    if prompt_len:
        starts.append(prompt_len)
    return str(Namespace(shared=session.namespace, owner=session.id, answer_starts=tuple(starts)))


def answer_starts(path: Sequence[Turn]) -> tuple[int, ...]:
    """Return where answers begin in the token ids of a path, as far as ids are known."""
    starts: list[int] = []
    length = 0
    for turn in live_part(path):
        if turn.token_ids is None or not turn.has_ids:
            break
        if turn.role is Role.ASSISTANT and (not starts or starts[-1] < length):
            starts.append(length)
        length += len(turn.token_ids)
    return tuple(starts)
