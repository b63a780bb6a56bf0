"""The window: its panes and what moves between them, whatever is said in it."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.widgets import Static

from kvchat.ui.key_names import key_name
from kvchat.ui.screens.services import ServicesScreen
from kvchat.ui.state.panes import PaneRequest, pane_widths
from kvchat.ui.widgets.cache.panel import CachePanel
from kvchat.ui.widgets.prompt import CommandList, Prompt
from kvchat.ui.widgets.session_list import SessionList
from kvchat.ui.widgets.sessions_pane import SessionsPane
from kvchat.ui.widgets.status_bar import StatusBar
from kvchat.ui.widgets.transcript import Transcript

_SHORT_SCREEN = 18
_MOST_LINES = 3


class WindowScreen(ServicesScreen):
    """Places the panes, and lets the person go from one to another.

    Attributes:
        prompt, transcript: once the window is mounted.
        own_keys: the person's other keys, by the ids of what they do.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("f1", "help", "Help", id="help"),
        Binding("f2", "sessions", "Sessions", id="sessions"),
        Binding("f3", "cache", "Cache", id="cache"),
        Binding("f4", "layers", "Layers", id="layers", show=False),
        Binding("f7", "inspect", "Blocks", id="inspect", show=False, priority=True),
        Binding("f8", "freeze", "Stand still", id="freeze", show=False),
        Binding("f9", "answer", "Answer", id="answer", show=False),
        Binding("ctrl+f", "find", "Find", id="find", priority=True),
    ]

    AUTO_FOCUS = "#prompt"

    prompt: Prompt
    transcript: Transcript
    _has_been_seen = False

    def __init__(self, own_keys: Mapping[str, str]) -> None:
        super().__init__()
        self.own_keys = own_keys
        self._wish = PaneRequest()

    def compose(self) -> ComposeResult:
        with Horizontal(id="body"):
            yield SessionsPane(key_name(self.own_keys, "find"), id="sessions-pane")
            with Vertical(id="conversation-pane"):
                yield Static("", id="heading", markup=False)
                yield Transcript(id="transcript")
            with Vertical(id="cache-pane", classes="pane"):
                yield Static("cache", classes="pane-title", markup=False)
                yield CachePanel(id="cache")
        with Vertical(id="composer"):
            yield Static("", id="offers", markup=False)
            yield Static("", id="queue", markup=False)
            yield Static("", id="attachments", markup=False)
            yield CommandList(id="commands")
            with Horizontal(id="prompt-row"):
                yield Static("›", id="prompt-mark", markup=False)
                yield Prompt(id="prompt")
        yield StatusBar(id="status")

    def show_sessions_pane(self) -> None:
        self._place_sessions()
        self.query_one(SessionList).focus()

    def show_tree(self) -> None:
        """Let the person go to another branch of the conversation on screen."""
        self.show_sessions_pane()
        self.query_one(SessionList).show_active()

    def find(self, words: str = "") -> None:
        """Let the person look for words in sessions and messages."""
        self._place_sessions()
        self.query_one(SessionsPane).find(words)

    def _place_sessions(self) -> None:
        self._wish = replace(self._wish, sessions=True, last="sessions")
        self._place_panes()

    # What the person does

    def on_prompt_completing(self, event: Prompt.Completing) -> None:
        self.query_one(CommandList).show_commands(event.candidates, event.chosen)

    def on_screen_resume(self, event: events.ScreenResume) -> None:
        """Come on screen. The first time every widget has just been given its styles."""
        event.refresh_styles = event.refresh_styles and self._has_been_seen
        self._has_been_seen = True

    def on_resize(self, event: events.Resize) -> None:
        self.set_class(event.size.height < _SHORT_SCREEN, "-short")
        self._place_panes()

    def action_help(self) -> None:
        from kvchat.ui.screens.help import HelpScreen

        if not self.has_dialog:
            self.app.push_screen(HelpScreen(self.own_keys))

    def action_sessions(self) -> None:
        is_shown = self.query_one("#sessions-pane").display
        if is_shown and self.query_one(SessionList).has_focus:
            self._wish = replace(self._wish, sessions=False)
            self._place_panes()
            self.prompt.focus()
        else:
            self.show_sessions_pane()

    def action_answer(self) -> None:
        """Let a question come that waited because something was typed."""
        if not self.offers.open():
            self.tell("no question waits")

    def action_find(self) -> None:
        self.find()

    def action_cache(self) -> None:
        is_shown = self.query_one("#cache-pane").display
        self._wish = replace(self._wish, cache=not is_shown, last="cache")
        self._place_panes()

    def action_layers(self) -> None:
        self.query_one(CachePanel).toggle_expanded()

    def action_freeze(self) -> None:
        self.query_one(CachePanel).toggle_frozen()

    async def action_page(self, direction: int) -> None:
        """Scroll the conversation by a page; near the top, earlier messages are mounted first."""
        if direction < 0:
            await self.transcript.page_up()
        else:
            self.transcript.scroll_page_down()

    def on_static_text_link_clicked(self, event: Any) -> None:
        self.app.copy_to_clipboard(event.href)
        self.tell(event.href, title="link copied")

    def _leave_sessions(self) -> None:
        """Go back to the conversation, which a narrow terminal shows in the place of the sessions."""
        self.query_one(SessionsPane).clear()
        if not self.query_one("#conversation-pane").display:
            self._wish = replace(self._wish, sessions=False)
            self._place_panes()
        self.prompt.focus()

    # Drawing

    def draw_lines(self, selector: str, lines: Sequence[str]) -> None:
        """Draw lines above the prompt, which is lower without them."""
        for place in self.query(selector).results(Static):  # none while the window is being closed
            if lines or place.display:
                place.display = bool(lines)
                place.update(Content("\n".join(lines[:_MOST_LINES])))

    def draw_offers(self, waiting: Sequence[str]) -> None:
        key = key_name(self.own_keys, "answer")
        self.draw_lines("#offers", [f"? {words} · {key} or /answer" for words in waiting])

    def _place_panes(self) -> None:
        widths = pane_widths(self.size.width, self._wish)
        for name, width in (("#sessions-pane", widths.sessions), ("#cache-pane", widths.cache)):
            pane = self.query_one(name)
            pane.display = width > 0
            pane.styles.width = width
        self.query_one("#conversation-pane").display = widths.has_conversation
