"""Services of the chat screen for its controllers.

Controllers call the screen and are called by it at once: what is typed behind a command must find the state
that the command leaves, so a message in a queue would come too late.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from textual.app import App
from textual.timer import Timer

from kvchat.engine.api.snapshot import CacheSnapshot
from kvchat.session.tree import Turn
from kvchat.ui.controllers.dialogs import Dialogs, Work
from kvchat.ui.controllers.turn_runner import TurnRunner, TurnScreen
from kvchat.ui.state.conversation_tab import QueuedTurn
from kvchat.ui.widgets.cache.panel import CachePanel
from kvchat.ui.widgets.panes import Panes
from kvchat.ui.widgets.prompt_input import Prompt
from kvchat.ui.widgets.session_list import SessionList

if TYPE_CHECKING:
    from kvchat.app.interface_host import InterfaceHost
    from kvchat.chat.engine_client import EngineClient
    from kvchat.ui.screens.notices import Notices


class ScreenServices(TurnScreen, Protocol):
    """The chat screen as its controllers know it.

    Attributes:
        engine: what is read of the engine itself.
        host: what may be done with the machine: files, settings, models.
        own_keys: the person's other keys, by the ids of what they do.
    """

    engine: "EngineClient"
    host: "InterfaceHost"
    turns: TurnRunner
    prompt: Prompt
    panes: Panes
    listed: SessionList
    panel: CachePanel
    dialogs: Dialogs
    notices: "Notices"
    own_keys: Mapping[str, str]

    @property
    def app(self) -> App[Any]: ...

    @property
    def is_attached(self) -> bool: ...

    @property
    def is_engine_ready(self) -> bool: ...

    @property
    def snapshot(self) -> CacheSnapshot | None:
        """The cache as it was last looked at; None while the engine loads."""
        ...

    # Notices and work

    def tell(self, message: str, *, title: str = "") -> None: ...

    def begin(self, work: Work, *, group: str = "", asked_s: float | None = None) -> object:
        """Run something that may wait, and warn of the KvchatError that ends it. Work of a group replaces
        what runs in it.

        Args:
            asked_s: when the key was pressed that led to it, where that is not the key that is answered now.
        """
        ...

    def set_timer(self, delay: float, callback: Callable[[], object]) -> Timer: ...

    # The prompt and what is sent from it

    def queue(self, pending: QueuedTurn) -> None:
        """Run a turn as soon as the engine is loaded and no other runs."""
        ...

    def submit(self, event: Prompt.Submitted) -> None:
        """Run a command, or send a message, to the conversation on screen."""
        ...

    def run_on(self, turn: Turn, name: str) -> None: ...

    # What is shown

    def draw_heading(self) -> None: ...

    def draw_lines(self, place: str, lines: Sequence[str]) -> None: ...

    def show_theme(self, name: str) -> None: ...

    def show_sessions_pane(self) -> None: ...

    def show_blocks(self) -> None: ...

    def stop_answer(self) -> None: ...

    def quit(self) -> None: ...
