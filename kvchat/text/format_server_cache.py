"""Wording of a server's cache. What it does not report is unknown, never nothing."""

from kvchat.engine.api.server_cache import ServerCache
from kvchat.text.figures import count_text, short_count_text

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
