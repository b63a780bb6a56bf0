"""Origin of converted KV, part of its namespace, so that no other session can meet it.

A converted block holds what was computed exactly and quantised later. What is computed behind it depends on
where that happened, so each conversion has a namespace of its own: `int4<-exact:FINGERPRINT:NONCE`.
"""

import re
import secrets

from kvchat.platform.values import dataclass

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
