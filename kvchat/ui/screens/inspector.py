"""The cache from inside: whose blocks there are, each block or layer of one, and what moved and why."""

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from enum import StrEnum
from time import monotonic, strftime
from typing import Any, ClassVar

from textual import events, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.widgets import Static

from kvchat.engine.api.cache_events import MOST_EVENTS, CacheEvent, CacheEventKind
from kvchat.engine.api.snapshot import LayerUsage
from kvchat.errors import KvchatError
from kvchat.text.figures import bytes_text, count_text
from kvchat.text.fit_text import fitted
from kvchat.ui.controllers.clipboard import named_file, write_text
from kvchat.ui.controllers.engine_watch import EngineWatch
from kvchat.ui.controllers.screen_services import ScreenServices
from kvchat.ui.screens.dialog import Dialog
from kvchat.ui.state.cache_history import SHOWN_S
from kvchat.ui.widgets.cache.block_table import BlockTable, BlockWithWords, RowList
from kvchat.ui.widgets.cache.inspector_rows import (
    KINDS,
    RowSource,
    block_heading,
    detail_lines,
    event_heading,
    event_row,
    events_title,
    layers_of,
    place_text,
    source_heading,
    source_row,
    sources,
)
from kvchat.ui.widgets.cache.panel_rows import BranchNames, layer_rows, layer_section
from kvchat.ui.widgets.cache.row_view import Look, Row, row_content, row_text

_INTERVAL_S = 0.5
_MOST_SOURCES = 6


class InspectorView(StrEnum):
    """What is shown, and below it the keys."""

    BLOCKS = "↑↓ block · ←→ session · l layers · e events"
    LAYERS = "←→ session · l layers of all · e events"
    ALL_LAYERS = "l blocks · e events"
    EVENTS = "←→ kind · e blocks · l layers"


_AFTER = {
    InspectorView.BLOCKS: InspectorView.LAYERS,
    InspectorView.EVENTS: InspectorView.LAYERS,
    InspectorView.LAYERS: InspectorView.ALL_LAYERS,
}
"""What `l` leads to; to blocks from the last."""
_KEYS = "esc closes · {} · w write · f freeze"


class InspectorScreen(Dialog[None]):
    """Follows the engine, which answers between two steps, until it is frozen.

    Args:
        names: says what live branches are called.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left,shift+tab", "source(-1)", "Before"),
        Binding("right,tab", "source(1)", "Next"),
        Binding("l", "layers", "Layers"),
        Binding("e", "events", "Events"),
        Binding("w", "write", "Write to a file"),
        Binding("f,f8", "freeze", "Freeze"),
        Binding("escape,f7,q,ctrl+c", "dismiss(None)", "Close"),
    ]

    def __init__(
        self, services: ScreenServices, watch: EngineWatch, names: Callable[[], BranchNames]
    ) -> None:
        super().__init__()
        self._services = services
        self._watch = watch
        self._branch_names = names
        self._words: dict[tuple[int, ...], str] = {}
        self._view = InspectorView.BLOCKS
        self._sources: Sequence[RowSource] = ()
        self._chosen = 0
        self._events: list[CacheEvent] = []
        self._kind: CacheEventKind | None = None
        self._frozen_at = ""
        self._problem = ""
        self._places: dict[int, str] = {}
        self._moved_s: dict[int, float] = {}

    def compose(self) -> ComposeResult:
        with Vertical(id="inspector"):
            yield Static("", id="inspector-title", markup=False)
            yield Static("", id="inspector-source-heading", markup=False)
            yield Static("", id="inspector-sources", markup=False)
            yield Static("", id="inspector-heading", markup=False)
            yield BlockTable(id="inspector-blocks")
            yield RowList(id="inspector-rows")
            yield Static("", id="inspector-detail", markup=False)
            yield Static("", id="inspector-keys", markup=False)

    def on_mount(self) -> None:
        self._show_view(InspectorView.BLOCKS)
        self.set_interval(_INTERVAL_S, self._look)

    def on_resize(self, event: events.Resize) -> None:
        self._show_view(self._view)
        self._draw()

    def action_source(self, step: int) -> None:
        """Show another session, or another kind of events, also while it is frozen."""
        if self._view is InspectorView.EVENTS:
            self._kind = KINDS[(KINDS.index(self._kind) + step) % len(KINDS)]
            self._draw()
        elif self._sources:
            self._chosen = (self._chosen + step) % len(self._sources)
            self._places, self._moved_s = {}, {}
            self.query_one(BlockTable).choose(0)
            self._read()

    def action_layers(self) -> None:
        """Show the layers of one session, then of all, then blocks again."""
        self._show_view(_AFTER.get(self._view, InspectorView.BLOCKS))

    def action_events(self) -> None:
        self._show_view(InspectorView.BLOCKS if self._view is InspectorView.EVENTS else InspectorView.EVENTS)

    def action_write(self) -> None:
        if self._view is InspectorView.EVENTS:
            self._write("events", self._shown_events[::-1])
        elif self._view is InspectorView.BLOCKS:
            self._write("blocks", [block for block, _ in self.query_one(BlockTable).values])
        else:
            self._write("layers", self._shown_layers)

    def _write(self, what: str, values: Sequence[Any]) -> None:
        """Write values as JSON Lines to a file with a word in its name, and tell it."""
        if not values:
            self._services.warn(f"there are no {what} to write")
            return

        async def write() -> None:
            lines = "".join(f"{json.dumps(asdict(value))}\n" for value in values)
            file = named_file(f"kvchat-{what}", ".jsonl")
            self._services.tell(await asyncio.to_thread(write_text, file, lines), title=what)

        self._services.begin(write)

    def action_freeze(self) -> None:
        self._frozen_at = "" if self._frozen_at else strftime("%H:%M:%S")
        self._draw()

    def on_block_table_moved(self) -> None:
        self._draw_detail()

    def _show_view(self, view: InspectorView) -> None:
        self._view = view
        table, rows = self.query_one(BlockTable), self.query_one("#inspector-rows", RowList)
        table.display = view is InspectorView.BLOCKS
        self.query_one("#inspector-detail").display = table.display and not self.has_class("-short")
        rows.display = view is not InspectorView.BLOCKS
        for name in ("#inspector-source-heading", "#inspector-sources"):
            self.query_one(name).display = view is not InspectorView.EVENTS
        (table if view is InspectorView.BLOCKS else rows).focus()
        self._read()

    def _look(self) -> None:
        if not self._frozen_at:
            self._read()

    @work(exclusive=True, group="inspect")
    async def _read(self) -> None:
        before = self._source
        snapshot = self._watch.snapshot
        found = [] if snapshot is None else sources(snapshot, self._branch_names(), self._watch.on_screen())
        self._sources = sorted(found, key=lambda source: source.mark != "●")  # that on screen first
        known = [
            number for number, one in enumerate(self._sources) if before and one.request == before.request
        ]
        self._chosen = known[0] if known else min(self._chosen, max(0, len(self._sources) - 1))
        source = self._source
        if source is None:
            self._problem = "the model is not loaded yet"
        else:
            try:
                if self._view is InspectorView.EVENTS:
                    await self._read_events()
                elif self._view is InspectorView.BLOCKS:
                    self._show(await asyncio.to_thread(self._blocks, source))
                self._problem = ""
            except KvchatError as error:
                self._problem = str(error)
        self._draw()

    def _blocks(self, source: RowSource) -> Sequence[BlockWithWords]:
        """Return the blocks of a source, each with its words. Waits for the engine."""
        words: dict[tuple[int, ...], str] = {}
        blocks = self._services.engine.inspect(replace(source.request, with_states=True))
        for block in blocks:
            ids = block.token_ids
            words[ids] = self._words.get(ids) or self._services.chat.variants.words(ids)
        self._words = words
        return [(block, words[block.token_ids]) for block in blocks]

    async def _read_events(self) -> None:
        """Take the events since the last one, which may have grown."""
        since = self._events[-1].number if self._events else 0
        newer = await asyncio.to_thread(self._services.engine.cache_events, since)
        self._events = [*(one for one in self._events if one.number < since), *newer][-MOST_EVENTS:]

    @property
    def _source(self) -> RowSource | None:
        return self._sources[self._chosen] if self._chosen < len(self._sources) else None

    @property
    def _shown_events(self) -> Sequence[CacheEvent]:
        """Those of the chosen kind, the newest first."""
        return [one for one in reversed(self._events) if self._kind in (None, one.kind)]

    @property
    def _shown_layers(self) -> Sequence[LayerUsage]:
        snapshot = self._watch.snapshot
        if snapshot is None:
            return ()
        return layers_of(self._source if self._view is InspectorView.LAYERS else None, snapshot)

    def _show(self, blocks: Sequence[BlockWithWords]) -> None:
        """Draw the blocks; those whose place changed stand out for a moment."""
        if not self.is_open:
            return
        now_s = monotonic()
        places = {block.start: place_text(block) for block, _ in blocks}
        for start, place in places.items():
            if self._places.get(start, place) != place:
                self._moved_s[start] = now_s
        self._places = places
        moved = frozenset(start for start, since_s in self._moved_s.items() if now_s - since_s < SHOWN_S)
        self.query_one(BlockTable).show_blocks(blocks, moved)

    def _draw(self) -> None:
        if not (self.is_mounted and self.is_open):
            return
        width = self.query_one("#inspector-keys").content_size.width
        title, heading = self._draw_rows(width)
        still = f"frozen since {self._frozen_at}: f goes on" if self._frozen_at else ""
        shown = "  ·  ".join(filter(None, [title, self._problem or still]))
        self.query_one("#inspector-title", Static).update(Content(shown))
        self.query_one("#inspector-source-heading", Static).update(Content(row_text(source_heading(width))))
        # Those around the chosen one where there are too many.
        first = min(max(0, self._chosen - _MOST_SOURCES // 2), max(0, len(self._sources) - _MOST_SOURCES))
        listed = list(enumerate(self._sources))[first : first + _MOST_SOURCES]
        rows = [source_row(one, width, is_chosen=number == self._chosen) for number, one in listed]
        lines = [row_content(row, {Look.DIFFERENT: "bold"}) for row in rows]
        self.query_one("#inspector-sources", Static).update(Content("\n").join(lines))
        self.query_one("#inspector-heading", Static).update(Content(row_text(heading)))
        self.query_one("#inspector-keys", Static).update(Content(fitted(_KEYS.format(self._view), width)))
        self._draw_detail()

    def _draw_rows(self, width: int) -> tuple[str, Row]:
        """Show the rows, where they are not blocks; return the title and the heading."""
        source, snapshot = self._source, self._watch.snapshot
        room = width - 1  # beside a scrollbar
        if self._view is InspectorView.EVENTS:
            found, titles = self._shown_events, self._branch_names().of_sessions
            self.query_one("#inspector-rows", RowList).show(found, lambda one: event_row(one, titles, room))
            return events_title(found, self._kind), event_heading(room)
        if self._view is InspectorView.BLOCKS or snapshot is None:
            num_blocks = count_text(len(self.query_one(BlockTable).values))
            return f"{source.title('blocks') if source else 'Blocks'}: {num_blocks}", block_heading(width)
        usages = self._shown_layers
        num_bytes = bytes_text(sum(one.used_bytes + one.cached_bytes for one in usages))
        is_one = source is not None and self._view is InspectorView.LAYERS
        title = source.title("layers") if source is not None and is_one else "Layers of all sessions"
        layers = layer_rows(replace(snapshot, layers=tuple(usages)), expanded=True)
        if is_one:  # what it does not have is not free
            layers = tuple(replace(row, num_total=0) for row in layers)
        heading, *rows = layer_section(layers, snapshot.block_size, room)
        self.query_one("#inspector-rows", RowList).show(rows, lambda row: row)
        return f"{title}: {num_bytes}", heading

    def _draw_detail(self) -> None:
        place = self.query_one("#inspector-detail", Static)
        block, words = self.query_one(BlockTable).block or (None, "")
        snapshot = self._watch.snapshot
        groups = snapshot.groups if snapshot else ()
        place.update(Content("\n".join(detail_lines(block, groups, words, place.content_size.width))))
