"""Pane widths that fit a terminal."""

from dataclasses import dataclass

_SESSIONS_WIDTH = 30
_WIDE_SESSIONS_WIDTH = 42
_CACHE_WIDTH = 42
_NARROW_CACHE_WIDTH = 36
_MIN_CONVERSATION_WIDTH = 40
_AUTO_CONVERSATION_WIDTH = 54
_WIDE_CONVERSATION_WIDTH = 78


@dataclass(frozen=True, slots=True, kw_only=True)
class PaneRequest:
    """What the person asked for; None leaves a pane to the width. `last` names the pane asked for last."""

    sessions: bool | None = None
    cache: bool | None = None
    last: str = "cache"

    @property
    def withdrawn(self) -> "PaneRequest":
        """The same without the panes that were asked for; what was closed stays closed."""
        return PaneRequest(sessions=self.sessions and None, cache=self.cache and None)


@dataclass(frozen=True, slots=True, kw_only=True)
class PaneWidths:
    """Columns of each pane, 0 where it is hidden; the conversation takes the rest, or nothing."""

    sessions: int
    cache: int
    has_conversation: bool = True


def pane_widths(width: int, request: PaneRequest) -> PaneWidths:
    """Return the panes to show in a terminal of `width` columns.

    Left to itself a pane appears where the conversation keeps a comfortable width; asked for, where it keeps
    a usable one; where not even that, the pane asked for last takes the conversation's place.
    """
    cache = _cache_columns(width, request)
    sessions = _sessions_columns(width - cache, request)
    if request.sessions and request.last == "sessions" and not sessions:
        cache, sessions = 0, _sessions_columns(width, request)
    if not cache and not sessions:
        return _single_pane(width, request)
    return PaneWidths(sessions=sessions, cache=cache)


def _cache_columns(width: int, request: PaneRequest) -> int:
    if request.cache is False:
        return 0
    comfortable = width - _CACHE_WIDTH - _AUTO_CONVERSATION_WIDTH
    if comfortable >= 0:
        is_wide = comfortable >= _SESSIONS_WIDTH or request.sessions is False
        return _CACHE_WIDTH if is_wide else _NARROW_CACHE_WIDTH
    fits = width - _NARROW_CACHE_WIDTH >= _MIN_CONVERSATION_WIDTH
    return _NARROW_CACHE_WIDTH if request.cache and fits else 0


def _sessions_columns(width: int, request: PaneRequest) -> int:
    if request.sessions is False:
        return 0
    least = _MIN_CONVERSATION_WIDTH if request.sessions else _AUTO_CONVERSATION_WIDTH
    if width - _SESSIONS_WIDTH < least:
        return 0
    # Half of what the conversation does not need to be comfortable goes to titles and bytes.
    spare = width - _SESSIONS_WIDTH - _WIDE_CONVERSATION_WIDTH
    return min(_WIDE_SESSIONS_WIDTH, _SESSIONS_WIDTH + max(0, spare // 2))


def _single_pane(width: int, request: PaneRequest) -> PaneWidths:
    if request.last == "sessions" and request.sessions:
        return PaneWidths(sessions=width, cache=0, has_conversation=False)
    if request.last == "cache" and request.cache:
        return PaneWidths(sessions=0, cache=width, has_conversation=False)
    return PaneWidths(sessions=0, cache=0)
