"""Answer footer: what was reused, loaded and computed, and how fast."""

from collections.abc import Callable, Sequence
from time import monotonic
from urllib.parse import urlsplit

from kvchat.engine.api.events import LoadChoice, Loaded, LoadEstimate, PrefillProgress
from kvchat.errors import ContextOverflow
from kvchat.session.tree import Backend, Finish, Session, Turn
from kvchat.text.attached_files import split_message
from kvchat.text.figures import count_text, gauge, guesses_text, rate_text, seconds_text
from kvchat.text.fit_text import one_line
from kvchat.text.trust import exactness_words

SEPARATOR = " · "


def footer_parts(turn: Turn, session: Session | None = None) -> tuple[str, ...]:
    """Return what is said about a finished answer, in order; nothing if it never reached the engine.

    Args:
        session: where it stands; None: in one whose KV was computed here.
    """
    parts = [*_usage_parts(turn), *_timing_parts(turn)]
    if turn.damaged:
        what = " and ".join(sorted(turn.broken))
        parts.append(f"damaged: {what} not as stored")
    elif turn.backend is not None:
        parts.append(f"by {host_of(turn.backend)}")
    elif turn.token_ids is None:
        parts.append("imported text")
    elif parts:
        parts.append(exactness_words(turn, session))
    if turn.repaired:
        parts.append("repaired")
    return tuple(parts)


def ending_text(turn: Turn, key: str = "f5", max_context: int | None = None) -> str:
    """Return why an answer is not complete and what to do, or nothing for a complete one.

    Args:
        key: goes on with it.
        max_context: None: that is not known yet.
    """
    if is_full(turn, max_context):
        return f"the context is full{SEPARATOR}{MAKE_ROOM}"
    ending = ENDINGS.get(turn.finish)
    return f"{ending}{SEPARATOR}{key} or /continue goes on" if ending else ""


def is_full(turn: Turn, max_context: int | None) -> bool:
    """Return whether an answer broke off because its conversation is as long as the model takes."""
    num_tokens = turn.usage.prompt_tokens + turn.usage.completion_tokens
    return turn.is_open and max_context is not None and num_tokens >= max_context


def overflow_text(error: ContextOverflow, message: str, num_tokens: int) -> str:
    """Return why a message was refused and what to do.

    Args:
        num_tokens: of the message alone, with its files.
    """
    if not error.max_context:
        return str(error)
    limit = f"of {count_text(error.max_context)} tokens"
    if num_tokens < error.max_context:
        return f"The context is full: {count_text(error.num_tokens)} {limit}. {MAKE_ROOM}"
    what = "File" if split_message(message)[0] else "Message"
    return (
        f"{what} is too long for this model: {count_text(num_tokens)} {limit}."
        " Send a part of it, or choose a model with a longer context (/model)"
    )


MAKE_ROOM = "/summary begins anew with a summary, /undo goes back, /drop leaves a message out"

ENDINGS = {
    Finish.LENGTH: "stopped at the length limit",
    Finish.INTERRUPTED: "interrupted",
    Finish.PARTIAL: "cut off",
    Finish.ERROR: "ended by an error",
}


WORTH_TELLING_S = 0.5


def loading_parts(estimate: LoadEstimate) -> tuple[str, ...]:
    """Return what is said before a wait for stored blocks; nothing about a short one."""
    if estimate.expected_s <= WORTH_TELLING_S:
        return ()
    about = f"about {seconds_text(estimate.expected_s)}"
    load, compute = seconds_text(estimate.load_s), seconds_text(estimate.compute_s)
    match estimate.choice:
        case LoadChoice.LOAD:
            return (f"loading, {about}", f"computing it again would take {compute}")
        case LoadChoice.COMPUTE:
            return (f"computing it again, {about}", f"loading would take {load}")
        case LoadChoice.BOTH:
            return (f"loading and computing at once, {about}", f"loading alone would take {load}")


def progress_parts(prefill: PrefillProgress, left_s: float | None = None) -> tuple[str, ...]:
    """Return what is said while the prompt is computed.

    Args:
        left_s: how long the rest will take; None: that is not known yet.
    """
    num_new = prefill.prompt_tokens - prefill.cached_tokens
    parts = [f"reused {count_text(prefill.cached_tokens)} of {count_text(prefill.prompt_tokens)}"]
    if prefill.computed_tokens < num_new:
        parts.append(f"computing {count_text(prefill.computed_tokens)} of {count_text(num_new)}")
    if left_s is not None:
        parts.append(f"{gauge(prefill.computed_tokens, num_new)} {seconds_text(left_s)} left")
    return tuple(parts)


class PrefillEta:
    """Time left in a prefill, from the speed seen so far; one for each prompt."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._first: tuple[float, int] | None = None

    def left_s(self, prefill: PrefillProgress) -> float | None:
        """Note how far a prompt is, and return the seconds left; None before any speed is known, and behind
        its end.
        """
        now_s = self._clock()
        if self._first is None:
            self._first = now_s, prefill.computed_tokens
        began_s, computed_before = self._first
        computed = prefill.computed_tokens - computed_before
        left = prefill.prompt_tokens - prefill.cached_tokens - prefill.computed_tokens
        return (now_s - began_s) / computed * left if computed > 0 and left > 0 else None


def wrap_parts(parts: Sequence[str], width: int) -> tuple[str, ...]:
    """Return lines of at most `width` cells, broken only between parts where that is possible."""
    lines: list[str] = []
    for part in parts:
        joined = f"{lines[-1]}{SEPARATOR}{part}" if lines else part
        if lines and len(joined) <= width:
            lines[-1] = joined
        else:
            lines.append(part)
    return tuple(lines)


def _usage_parts(turn: Turn) -> list[str]:
    usage, backend = turn.usage, turn.backend
    if backend is not None:  # what the server has reported of its cache
        if not backend.counts_tokens:
            return ["reused unknown"]
        cached = count_text(usage.cached_tokens) if backend.counts_cached else "unknown"
        return [f"reused {cached} of {count_text(usage.prompt_tokens)}"]
    if not usage.prompt_tokens:
        return []
    return [
        f"reused {count_text(usage.cached_tokens)} of {count_text(usage.prompt_tokens)}",
        f"loaded {_loaded_text(turn.loaded)}",
        f"computed {count_text(usage.computed_tokens)}",
    ]


def host_of(backend: Backend) -> str:
    """Return the machine of a server, and its port."""
    return one_line(urlsplit(backend.url).netloc or backend.url)


def _loaded_text(loaded: Loaded) -> str:
    """Return what came from a slower tier; blocks that were on the device needed no loading."""
    sources = [(loaded.host, "host"), (loaded.disk, "disk")]
    return " + ".join(f"{count_text(count)} from {tier}" for count, tier in sources if count) or "0"


def _timing_parts(turn: Turn) -> list[str]:
    parts = []
    if turn.timings.ttft_s is not None:
        parts.append(f"{seconds_text(turn.timings.ttft_s)} to first token")
    if turn.timings.decode_tokens_per_s is not None:
        parts.append(rate_text(turn.timings.decode_tokens_per_s))
    if turn.usage.accepted_tokens:
        parts.append(guesses_text(turn.usage.accepted_tokens, turn.usage.drafted_tokens))
    return parts
