"""Panes of the window side by side: sessions, conversation, cache; those that fit are shown."""

from dataclasses import dataclass, replace

from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical
from textual.widgets import Input, Static

from kvchat.ui.key_names import name_for
from kvchat.ui.widgets.cache.panel import CachePanel
from kvchat.ui.widgets.list_search_field import FindField
from kvchat.ui.widgets.session_list import SessionList
from kvchat.ui.widgets.transcript import Transcript

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


class SessionsPane(Vertical):
    """The left pane: a field to find sessions and messages by words, and the list of what matches them."""

    DEFAULT_CLASSES = "pane"

    def compose(self) -> ComposeResult:
        yield Static("sessions", classes="pane-title", markup=False)
        yield FindField(f"find · {name_for(self, 'find')}", id="find")
        yield SessionList(id="sessions")

    def on_input_submitted(self, event: Input.Submitted) -> None:
        event.stop()
        listed = self.query_one(SessionList)
        if listed.highlighted is None and listed.lines:
            listed.highlighted = 0
        listed.action_select()


class Heading(Static):
    """What stands above the conversation: drawn for its width."""

    def on_resize(self) -> None:
        self.screen.draw_heading()  # type: ignore[attr-defined]


class Panes(Horizontal):
    """Shows and hides panes as the person asks and the width allows."""

    _request = PaneRequest()

    def compose(self) -> ComposeResult:
        yield SessionsPane(id="sessions-pane")
        with Vertical(id="conversation-pane"):
            yield Heading("", id="heading", markup=False)
            yield Transcript(id="transcript")
        with Vertical(id="cache-pane", classes="pane"):
            yield Static("cache", classes="pane-title", markup=False)
            yield CachePanel(id="cache")

    def fit(self, width: int) -> None:
        """Show the panes that fit a window of `width` columns; where only one does, the conversation."""
        if self.has_conversation and not pane_widths(width, self._request).has_conversation:
            self._request = self._request.withdrawn
        self._show(pane_widths(width, self._request))

    def _show(self, widths: PaneWidths) -> None:
        sessions = self.query_one(SessionsPane)
        if not widths.sessions and sessions.has_focus_within:
            self.call_later(self.screen.action_leave_sessions)  # type: ignore[attr-defined]
        self.screen.set_class(widths.cache > 0, "-cache")
        for name, columns in (("#sessions-pane", widths.sessions), ("#cache-pane", widths.cache)):
            pane = self.query_one(name)
            pane.display = columns > 0
            pane.styles.width = columns
        conversation = self.query_one("#conversation-pane")
        if conversation.display != widths.has_conversation:
            conversation.display = widths.has_conversation
            self.screen.draw_hints()  # type: ignore[attr-defined]

    @property
    def has_conversation(self) -> bool:
        """Whether the conversation is shown; a pane may have taken its place."""
        return self.query_one("#conversation-pane").display

    def show_conversation(self) -> None:
        """Show the conversation again, where a pane has taken its place."""
        if not self.has_conversation:
            self._change(self._request.withdrawn)

    def show_sessions(self) -> None:
        self._change(replace(self._request, sessions=True, last="sessions"))
        self.query_one(SessionList).focus()

    def hide_sessions(self) -> bool:
        """Hide the sessions if the person is there, and return whether that was so."""
        if not (self.query_one(SessionsPane).display and self.query_one(SessionList).has_focus):
            return False
        self._change(replace(self._request, sessions=False))
        return True

    def find(self, words: str) -> None:
        self._change(replace(self._request, sessions=True, last="sessions"))
        field = self.query_one(FindField)
        field.value = words or field.value
        field.cursor_position = len(field.value)
        field.focus()

    def leave_sessions(self) -> None:
        """Show the conversation again, which a narrow terminal shows in the place of the sessions."""
        self.query_one(FindField).value = ""
        self.show_conversation()

    def toggle_cache(self) -> None:
        self._change(replace(self._request, cache=not self.query_one("#cache-pane").display, last="cache"))

    def _change(self, request: PaneRequest) -> None:
        self._request = request
        self._show(pane_widths(self.screen.size.width, request))
