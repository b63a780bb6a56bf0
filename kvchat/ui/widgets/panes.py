"""Panes of the window side by side: sessions, conversation, cache; those that fit are shown."""

from collections.abc import Mapping
from dataclasses import replace

from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical
from textual.widgets import Static

from kvchat.ui.key_names import key_name
from kvchat.ui.state.panes import PaneRequest, PaneWidths, pane_widths
from kvchat.ui.widgets.cache.panel import CachePanel
from kvchat.ui.widgets.session_list import SessionList
from kvchat.ui.widgets.sessions_pane import SessionsPane
from kvchat.ui.widgets.transcript import Transcript


class Heading(Static):
    """What stands above the conversation: drawn for its width."""

    def on_resize(self) -> None:
        self.screen.draw_heading()  # type: ignore[attr-defined]


class Panes(Horizontal):
    """Shows and hides panes as the person asks and the width allows."""

    def __init__(self, own_keys: Mapping[str, str]) -> None:
        super().__init__(id="body")
        self._own_keys = own_keys
        self._request = PaneRequest()

    def compose(self) -> ComposeResult:
        yield SessionsPane(key_name(self._own_keys, "find"), id="sessions-pane")
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
            sessions.post_message(SessionsPane.Closed())
        self.screen.set_class(widths.cache > 0, "-cache")
        for name, columns in (("#sessions-pane", widths.sessions), ("#cache-pane", widths.cache)):
            pane = self.query_one(name)
            pane.display = columns > 0
            pane.styles.width = columns
        conversation = self.query_one("#conversation-pane")
        has_changed, conversation.display = (
            conversation.display != widths.has_conversation,
            widths.has_conversation,
        )
        if has_changed:
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
        """Let the person choose a session."""
        self._change(replace(self._request, sessions=True, last="sessions"))
        self.query_one(SessionList).focus()

    def hide_sessions(self) -> bool:
        """Hide the sessions if the person is there, and return whether that was so."""
        if not (self.query_one(SessionsPane).display and self.query_one(SessionList).has_focus):
            return False
        self._change(replace(self._request, sessions=False))
        return True

    def find(self, words: str) -> None:
        """Let the person look for words in sessions and messages."""
        self._change(replace(self._request, sessions=True, last="sessions"))
        self.query_one(SessionsPane).find(words)

    def leave_sessions(self) -> None:
        """Show the conversation again, which a narrow terminal shows in the place of the sessions."""
        self.query_one(SessionsPane).clear()
        self.show_conversation()

    def toggle_cache(self) -> None:
        self._change(replace(self._request, cache=not self.query_one("#cache-pane").display, last="cache"))

    def _change(self, request: PaneRequest) -> None:
        self._request = request
        self._show(pane_widths(self.screen.size.width, request))
