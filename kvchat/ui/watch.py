"""The cache panel alone, of an engine in another process."""

import asyncio
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, ClassVar

from textual import work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import Static

from kvchat.engine.api.engine_phase import EnginePhase
from kvchat.ui.state.cache_history import History
from kvchat.ui.state.stored_sessions import StoredSessions
from kvchat.ui.terminal.stray_output import guarded_terminal, hang_up_told
from kvchat.ui.theme import KVCHAT_THEME, ThemedApp
from kvchat.ui.widgets.cache.panel import CachePanel
from kvchat.ui.widgets.cache.panel_rows import BranchNames, Live

if TYPE_CHECKING:
    from kvchat.chat.engine_client import EngineClient
    from kvchat.session.store import SessionStore

_INTERVAL_S = 0.5
_KEYS = "l layers · f freeze · q quit"


class WatchApp(ThemedApp):
    """Follows an engine until the person leaves or the engine has ended.

    Args:
        engine: asked in a thread, since it may not answer at once.
        store: has the titles of sessions.
    """

    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("l,f4", "layers", "Layers"),
        Binding("f,f8", "freeze", "Freeze"),
        Binding("q,escape,f3,ctrl+c,ctrl+q", "quit", "Quit", priority=True),
    ]

    def __init__(self, engine: "EngineClient", store: "SessionStore") -> None:
        super().__init__()
        self.theme = KVCHAT_THEME.name
        self._engine = engine
        self._sessions = StoredSessions(store)
        self._history = History()
        self._owners: frozenset[str] = frozenset()

    def compose(self) -> ComposeResult:
        yield CachePanel(id="panel")
        yield Static(_KEYS, markup=False)

    def run_in_terminal(self, log_path: Path) -> None:
        """Run until the person leaves; what else is written goes to the log."""
        with hang_up_told(), guarded_terminal(log_path, lambda _: self.call_later(self.exit)):
            self.run()

    def on_mount(self) -> None:
        self._follow()

    def action_layers(self) -> None:
        self.query_one(CachePanel).toggle_expanded()

    def action_freeze(self) -> None:
        self.query_one(CachePanel).toggle_frozen()

    @work
    async def _follow(self) -> None:
        while (await asyncio.to_thread(self._engine.status)).phase is not EnginePhase.FAILED:
            await asyncio.to_thread(self._look)
            await asyncio.sleep(_INTERVAL_S)
        self.exit()

    def _look(self) -> None:
        snapshot = self._engine.snapshot()
        if snapshot is None:
            return
        owners = frozenset(branch.owner for branch in snapshot.sequences)
        if owners != self._owners:
            self._owners = owners
            self._sessions.read()
        names = BranchNames(of_branches={}, of_sessions=self._sessions.titles)
        live = Live(recent=self._history.observe(monotonic(), snapshot))
        self.call_from_thread(self.query_one(CachePanel).show_snapshot, snapshot, names, live)
