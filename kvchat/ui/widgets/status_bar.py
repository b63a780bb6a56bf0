"""The last line: context, reuse, room, speed, and what the engine does."""

from dataclasses import dataclass

from textual.content import Content
from textual.widgets import Static

from kvchat.engine.api.engine_phase import EnginePhase, EngineStatus
from kvchat.engine.api.server_cache import ServerCache
from kvchat.engine.api.snapshot import CacheSnapshot
from kvchat.text.answer_footer import SEPARATOR, wrap_parts
from kvchat.text.cache_usage import share_words
from kvchat.text.figures import gauge, percent_text, rate_text, short_count_text
from kvchat.text.fit_text import fitted, one_line

_LEAST_REASON = 16
_LEAST_GAP = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusFigures:
    """What the status bar shows of the conversation on screen: its length, and how far its KV is trusted."""

    status: EngineStatus
    snapshot: CacheSnapshot | None
    context_tokens: int
    tokens_per_s: float | None
    num_queued: int = 0
    trust: str = ""
    hint: str = ""


def status_text(figures: StatusFigures, width: int) -> str:
    """Return the line; parts that do not fit beside the hint are left out: the tiers' first, then from the
    right. Of the hints, which are parts too, the first go where the first figure leaves them no room.
    """
    hint = figures.hint
    parts = [*_engine_parts(figures), *_cache_parts(figures)]
    while SEPARATOR in hint and sum(map(len, parts[:1])) + _LEAST_GAP + len(hint) > width:
        hint = hint.partition(SEPARATOR)[2]
    if figures.snapshot is not None:
        with_tiers = [*parts[:-2], _tiers_part(figures.snapshot), *parts[-2:]]
        if len(SEPARATOR.join(with_tiers)) + _LEAST_GAP + len(hint) <= width:
            parts = with_tiers
    room = max(_LEAST_REASON, width - len(hint) - _LEAST_GAP) if hint else width
    if figures.status.phase is EnginePhase.FAILED:
        parts = [fitted(parts[0], room), *parts[1:]]
    line = "".join(wrap_parts(parts, room)[:1])
    gap = width - len(line) - len(hint)
    return line + " " * gap + hint if gap >= _LEAST_GAP else line


class StatusBar(Static):
    """One line under the prompt."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__("", id=id, markup=False)
        self._figures: StatusFigures | None = None

    def show_figures(self, figures: StatusFigures) -> None:
        if figures != self._figures:
            self._figures = figures
            self._draw()

    def on_resize(self) -> None:
        self._draw()

    def _draw(self) -> None:
        if self._figures is None:
            return
        self.set_class(self._figures.status.phase is EnginePhase.FAILED, "-failed")
        # One line, whatever it says: nothing is to be laid out for it.
        self.update(Content(status_text(self._figures, self.content_size.width)), layout=False)


def _engine_parts(figures: StatusFigures) -> list[str]:
    status = figures.status
    parts = []
    if status.phase is EnginePhase.LOADING:
        parts.append(f"◌ {status.detail or 'loading the model'}")
    elif status.phase is EnginePhase.FAILED:
        parts.append(f"✗ {status.error or status.detail or 'the engine stopped'}".splitlines()[0])
    elif status.phase is EnginePhase.CLOSED:
        parts.append("the engine is closed")
    elif figures.snapshot is not None and figures.snapshot.problem is not None:
        is_space = "free some" in figures.snapshot.problem
        parts.append(f"! KV not saved{': free disk space' if is_space else SEPARATOR + '/notices says why'}")
    elif figures.snapshot is None and status.detail:
        parts.append(f"{one_line(status.detail)} · {_served_words(status.served)}")
    if figures.num_queued:
        parts.append(f"{figures.num_queued} queued")
    if figures.trust:
        parts.append(figures.trust)
    return parts


def _served_words(served: ServerCache | None) -> str:
    if served is None:
        return "its cache is unknown"
    return f"its cache {share_words(served.usage)} · reuse {share_words(served.hit_rate)}"


def _tiers_part(snapshot: CacheSnapshot) -> str:
    """Return how many blocks each tier has; what is not used has none."""
    tiers = [tier for tier in snapshot.tiers if tier.total_bytes != 0 or tier.num_blocks]
    counts = " ".join(f"{tier.tier.value} {short_count_text(tier.num_blocks)}" for tier in tiers)
    return f"{counts} blocks"


def _cache_parts(figures: StatusFigures) -> list[str]:
    snapshot = figures.snapshot
    if snapshot is None:
        return []
    used, limit = figures.context_tokens, snapshot.max_context
    asked = snapshot.reused_tokens + snapshot.computed_tokens
    room = max(0, min(snapshot.room_tokens, limit - used))
    form = [] if snapshot.is_exact else [f"KV in {snapshot.cache_format}, approximate"]
    return [
        f"ctx {short_count_text(used)}/{short_count_text(limit)} {gauge(used, limit)}",
        *form,
        f"reuse {percent_text(snapshot.reused_tokens, asked)}",
        f"room for {short_count_text(room)} tokens",
        rate_text(figures.tokens_per_s),
    ]
