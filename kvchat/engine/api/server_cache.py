"""Cache state reported by a remote server."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerCache:
    """Figures of a server, of all its engines together. None: it does not report this one.

    Args:
        usage: the share of its KV memory that is in use, from 0 to 1.
        host_usage: the same of the host memory that takes what the device evicts.
        hit_rate: the share of what its prefix cache was asked for that it had, from 0 to 1.
        hit_tokens, asked_tokens: the same in tokens, where it counts these.
    """

    usage: float | None = None
    host_usage: float | None = None
    hit_rate: float | None = None
    hit_tokens: int | None = None
    asked_tokens: int | None = None
    num_running: int | None = None
    num_waiting: int | None = None
