"""Engine status: loading, ready, failed or absent."""

from dataclasses import dataclass
from enum import StrEnum

from kvchat.engine.api.server_cache import ServerCache
from kvchat.errors import KvchatError


class EnginePhase(StrEnum):
    LOADING = "loading"
    READY = "ready"
    FAILED = "failed"
    CLOSED = "closed"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStatus:
    """Where the engine stands; `detail` is a line for people; `error` is set when the phase is FAILED.

    Args:
        served: what a server in its place reports of its cache; None where an engine is here, or it reports
            nothing.
    """

    phase: EnginePhase
    detail: str = ""
    error: KvchatError | None = None
    served: ServerCache | None = None
