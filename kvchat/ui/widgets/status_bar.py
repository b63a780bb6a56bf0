"""The last line: context, reuse, room, speed, and what the engine does."""

from collections.abc import Sequence
from dataclasses import dataclass

from textual.content import Content
from textual.style import Style
from textual.widgets import Static

from kvchat.engine.api.engine_phase import EnginePhase, EngineStatus
from kvchat.engine.api.server_cache import ServerCache
from kvchat.engine.api.snapshot import CacheSnapshot
from kvchat.text.answer_footer import SEPARATOR
from kvchat.text.cache_usage import share_words
from kvchat.text.figures import gauge, percent_text, rate_text, short_count_text
from kvchat.text.fit_text import fitted, one_line
from kvchat.ui.key_names import Hint

_LEAST_REASON = 16
_GAP = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusFigures:
    """What the status bar shows of the conversation on screen: its length, and how far its KV is trusted."""

    status: EngineStatus
    snapshot: CacheSnapshot | None
    context_tokens: int
    tokens_per_s: float | None
    num_queued: int = 0
    trust: str = ""


def status_text(figures: StatusFigures, width: int, hints: Sequence[Hint] = ()) -> str:
    """Return the line: what the engine says, keys at the right, and the figures for which they leave room.

    Of the keys the first go where there is no room for all. Of the figures those of the tiers go first, then
    those at the right.
    """
    urgent = _engine_parts(figures)
    needed = min(len(urgent[0]), max(_LEAST_REASON, width // 2)) + _GAP if urgent else 0
    while len(hints) > 1 and needed + len(_joined(hints)) > width:
        hints = hints[1:]
    keys = _joined(hints)
    room = max(_LEAST_REASON if urgent else 0, width - len(keys) - _GAP * bool(keys))
    line = _fitting(figures, urgent, room)
    return line + keys.rjust(width - len(line)) if width - len(line) - len(keys) >= _GAP else line or keys


class StatusBar(Static):
    """One line under the prompt. A click on a key is as good as the key."""

    _figures: StatusFigures | None = None
    _hints: Sequence[Hint] = ()

    def show_figures(self, figures: StatusFigures) -> None:
        if figures != self._figures:
            self._figures = figures
            self._draw()

    def show_hints(self, hints: Sequence[Hint]) -> None:
        if hints != self._hints:
            self._hints = hints
            self._draw()

    def on_resize(self) -> None:
        self._draw()

    def _draw(self) -> None:
        if self._figures is None:
            return
        self.set_class(self._figures.status.phase is EnginePhase.FAILED, "-failed")
        line = Content(status_text(self._figures, self.content_size.width, self._hints))
        end = len(line)
        for hint in reversed(self._hints):
            start = end - len(str(hint))
            if not hint.key or line.plain[max(0, start) : end] != str(hint):
                break
            press = Style.from_meta({"@click": f"app.simulate_key({hint.key!r})"})
            line = line.stylize(press, start, end).stylize(Style(bold=True), start, start + len(hint.name))
            end = start - len(SEPARATOR)
        # One line, whatever it says: nothing is to be laid out for it.
        self.update(line, layout=False)


def _joined(hints: Sequence[Hint]) -> str:
    return SEPARATOR.join(map(str, hints))


def _fitting(figures: StatusFigures, urgent: Sequence[str], room: int) -> str:
    """Return what fits in `room`; what the engine says is cut rather than left out."""
    parts = [*(fitted(part, room) for part in urgent[:1]), *urgent[1:], *_cache_parts(figures)]
    if figures.snapshot is not None:
        with_tiers = [*parts[:-2], _tiers_part(figures.snapshot), *parts[-2:]]
        if len(SEPARATOR.join(with_tiers)) <= room:
            return SEPARATOR.join(with_tiers)
    short = next(iter(parts), "").partition(" ▕")[0]  # without its bar
    while parts and len(SEPARATOR.join(parts)) > room:
        parts.pop()
    return SEPARATOR.join(parts) or (short if len(short) <= room else "")


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
