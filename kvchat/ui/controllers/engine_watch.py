"""Reads the engine's state again and again and draws it: cache panel and status bar."""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING

from kvchat.engine.api.engine_phase import EnginePhase, EngineStatus
from kvchat.engine.api.snapshot import CacheSnapshot, SequenceUsage
from kvchat.errors import KvchatError
from kvchat.text.trust import trust_words
from kvchat.ui.controllers.screen_services import ScreenServices
from kvchat.ui.state.cache_history import History, Recent
from kvchat.ui.state.cached_prefix import OnScreen, on_screen, path_request
from kvchat.ui.state.conversation_tab import State, branch_key, state_of
from kvchat.ui.widgets.cache.compact_line import CacheLine
from kvchat.ui.widgets.cache.panel_rows import BranchNames, Live
from kvchat.ui.widgets.session_rows import Held
from kvchat.ui.widgets.status_bar import StatusBar, StatusFigures

if TYPE_CHECKING:
    from kvchat.chat.conversation import Conversation

HeldBySession = Mapping[str, Held]
HeldByBranch = Mapping[tuple[str, str], Held]
"""By the session's id and the branch's name."""

_LOADING_POLL_S, _BUSY_POLL_S = 1 / 12, 0.25
_IDLE_POLL_S = 0.5
_DRAWN_S = 0.5
"""So often counts are drawn at most, and all else at once: drawing takes time from decoding."""


class EngineWatch:
    """One look at the engine per call of `look`; a snapshot is one immutable object, so looking is cheap.

    Attributes:
        status: the engine's state when last looked at.
        snapshot: the cache's, None while it loads.
        last_rate: tokens per second of the last answer on screen.
    """

    def __init__(
        self,
        screen: ScreenServices,
        line: CacheLine,
        status_bar: StatusBar,
        on_phase: Callable[[EngineStatus], None],
    ) -> None:
        self.status = EngineStatus(phase=EnginePhase.LOADING)
        self.snapshot: CacheSnapshot | None = None
        self.last_rate: float | None = None
        self._screen = screen
        self._engine = screen.engine
        self._turns = screen.turns
        self._panel = screen.panel
        self._line = line
        self._status_bar = status_bar
        self._on_phase = on_phase
        self._history = History()
        self._recent = Recent()
        self._words: tuple[object, ...] = ()
        self._drawn_s = 0.0
        self._found: tuple[State, OnScreen] | None = None
        self._looked_at: object = None
        self._is_looking = False

    @property
    def is_ready(self) -> bool:
        return self.status.phase is EnginePhase.READY

    def look(self, names: BranchNames) -> float:
        """Read and draw; return the seconds until the next look."""
        before, self.status, self.snapshot = self.status, self._engine.status(), self._engine.snapshot()
        if self.snapshot is not None:
            self._recent = self._history.observe(monotonic(), self.snapshot)
        conversation, cached = self._turns.conversation, self.on_screen()
        figures = StatusFigures(
            status=self.status,
            snapshot=self.snapshot,
            context_tokens=self._context_tokens(),
            tokens_per_s=self._history.tokens_per_s or self.last_rate,
            num_queued=len(self._turns.tab.queue),
            trust=trust_words(conversation.session) if conversation else "",
        )
        words = figures.status, figures.num_queued, figures.trust
        if words != self._words or monotonic() - self._drawn_s >= _DRAWN_S:
            self._words, self._drawn_s = words, monotonic()
            self._draw(figures, names, cached)
        if self.status.phase is not before.phase:
            self._on_phase(self.status)
        if self.status.phase is EnginePhase.LOADING:
            return _LOADING_POLL_S
        return _BUSY_POLL_S if self._turns.is_running else _IDLE_POLL_S

    def _draw(self, figures: StatusFigures, names: BranchNames, cached: OnScreen | None) -> None:
        if self.snapshot is not None:
            live = Live(recent=self._recent, context_len=figures.context_tokens, on_screen=cached)
            self._panel.show_snapshot(self.snapshot, names, live)
            self._line.show_snapshot(self.snapshot)
        elif self.is_ready:
            self._panel.show_elsewhere(self.status.detail, self.status.served)
            self._line.display = False
        self._status_bar.show_figures(figures)

    def on_screen(self) -> OnScreen | None:
        """Return what the device has of the conversation on screen while no live branch holds it.

        The engine is asked beside this, and only where the conversation or the cache has changed.
        """
        conversation, snapshot = self._turns.conversation, self.snapshot
        if conversation is None or snapshot is None or not conversation.turns:
            return None
        if conversation.engine_sequence in {branch.sequence for branch in snapshot.sequences}:
            return None
        state = state_of(conversation)
        looked_at = state, snapshot.groups, snapshot.fingerprint
        if looked_at != self._looked_at and not self._is_looking:
            self._looked_at, self._is_looking = looked_at, True
            self._screen.begin(partial(self._look_for, conversation, snapshot))
        return self._found[1] if self._found is not None and self._found[0] == state else None

    async def _look_for(self, conversation: "Conversation", snapshot: CacheSnapshot) -> None:
        state, request = state_of(conversation), path_request(conversation)
        try:
            blocks = await asyncio.to_thread(self._engine.inspect, request)
            self._found = state, on_screen(request, conversation.session.id, blocks, snapshot)
        except KvchatError:
            self._found = None
        finally:
            self._is_looking = False

    def _context_tokens(self) -> int:
        """Return the length of the conversation on screen, with what is being written now."""
        owner = self._turns.conversation.session.id if self._turns.conversation else None
        live = [branch.num_tokens for branch in self._branches if branch.running and branch.owner == owner]
        return max([self._turns.context_len, *live])

    def held(self, opened: "Iterable[Conversation]") -> tuple[HeldBySession, HeldByBranch]:
        """Return what each session with a live branch has on the device, and the same for those of its
        branches that are among the `opened`.
        """
        names = {one.engine_sequence: branch_key(one) for one in opened}
        sessions: dict[str, Held] = {}
        branches: dict[tuple[str, str], Held] = {}
        for branch in self._branches:
            held = Held(
                own_bytes=branch.own_bytes,
                shared_bytes=branch.shared_bytes,
                is_on_device=any(branch.blocks_per_group),
                is_running=branch.running,
            )
            before = sessions.get(branch.owner, Held(is_on_device=False))
            sessions[branch.owner] = Held(
                own_bytes=before.own_bytes + held.own_bytes,
                shared_bytes=max(before.shared_bytes, held.shared_bytes),
                is_on_device=before.is_on_device or held.is_on_device,
                is_running=before.is_running or held.is_running,
            )
            if branch.sequence in names:
                branches[names[branch.sequence]] = held
        return sessions, branches

    @property
    def _branches(self) -> Sequence[SequenceUsage]:
        return self.snapshot.sequences if self.snapshot else ()
