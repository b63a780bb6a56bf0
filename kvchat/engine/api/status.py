"""Whether there is an engine to talk to."""

from dataclasses import dataclass
from enum import StrEnum

from kvchat.errors import KvchatError


class EnginePhase(StrEnum):
    LOADING = "loading"
    READY = "ready"
    FAILED = "failed"
    CLOSED = "closed"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStatus:
    """Where the engine stands; `detail` is a line for people; `error` is set when the phase is FAILED."""

    phase: EnginePhase
    detail: str = ""
    error: KvchatError | None = None
