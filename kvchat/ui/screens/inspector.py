"""The cache from inside: whose blocks there are, and every block with its name, place and holders."""

from collections.abc import Awaitable, Callable, Sequence
from time import monotonic, strftime
from typing import ClassVar

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.style import Style
from textual.widgets import Static

from kvchat.engine.api.inspection import InspectedBlock
from kvchat.engine.api.snapshot import CacheSnapshot
from kvchat.errors import KvchatError
from kvchat.ui.screens.dialog import Dialog
from kvchat.ui.state.cache_history import SHOWN_S
from kvchat.ui.widgets.cache.block_table import BlockTable
from kvchat.ui.widgets.cache.inspector_rows import (
    RowSource,
    block_heading,
    detail_lines,
    place_text,
    source_heading,
    source_row,
)
from kvchat.ui.widgets.cache.row_view import Look, Row, row_text

_INTERVAL_S = 0.5
_MOST_SOURCES = 6
_KEYS = "↑↓ block · ←→ session · f freeze · esc closes"

BlocksWithWords = Sequence[tuple[InspectedBlock, str]]


class InspectorScreen(Dialog[None]):
    """Follows the engine until it is told to stand still.

    Args:
        snapshot: returns the cache as it was last looked at.
        sources: returns whose blocks can be shown; none while the model loads.
        read: asks the engine for blocks; raises KvchatError where there is none.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left,shift+tab", "source(-1)", "Session before"),
        Binding("right,tab", "source(1)", "Next session"),
        Binding("f,f8", "freeze", "Freeze"),
        Binding("escape,f7,q,ctrl+c", "dismiss(None)", "Close"),
    ]

    def __init__(
        self,
        snapshot: Callable[[], CacheSnapshot | None],
        sources: Callable[[], Sequence[RowSource]],
        read: Callable[[RowSource], Awaitable[BlocksWithWords]],
    ) -> None:
        super().__init__()
        self._snapshot = snapshot
        self._list_sources = sources
        self._read_blocks = read
        self._sources: Sequence[RowSource] = ()
        self._chosen = 0
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
            yield Static("", id="inspector-detail", markup=False)
            yield Static(_KEYS, id="inspector-keys", markup=False)

    def on_mount(self) -> None:
        self.query_one(BlockTable).focus()
        self.set_interval(_INTERVAL_S, self._look)
        self._look()

    def on_resize(self, event: events.Resize) -> None:
        self._draw()

    def action_source(self, step: int) -> None:
        """Show the blocks of another session, also while it stands still."""
        if self._sources:
            self._chosen = (self._chosen + step) % len(self._sources)
            self._places, self._moved_s = {}, {}
            self.query_one(BlockTable).choose(0)
            self._ask()

    def action_freeze(self) -> None:
        self._frozen_at = "" if self._frozen_at else strftime("%H:%M:%S")
        self._draw()

    def on_block_table_moved(self) -> None:
        self._draw_detail()

    def _look(self) -> None:
        if not self._frozen_at:
            self._ask()

    def _ask(self) -> None:
        self.run_worker(self._read(), exclusive=True, group="inspect")

    async def _read(self) -> None:
        before = self._source
        self._sources = self._list_sources()
        known = [
            number for number, one in enumerate(self._sources) if before and one.request == before.request
        ]
        self._chosen = known[0] if known else min(self._chosen, max(0, len(self._sources) - 1))
        source = self._source
        if source is None:
            self._problem = "the model is not loaded yet"
        else:
            try:
                self._show(await self._read_blocks(source))
                self._problem = ""
            except KvchatError as error:
                self._problem = str(error)
        self._draw()

    @property
    def _source(self) -> RowSource | None:
        return self._sources[self._chosen] if self._chosen < len(self._sources) else None

    def _show(self, blocks: BlocksWithWords) -> None:
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
        self.query_one(BlockTable).show(tuple(blocks), moved)

    def _draw(self) -> None:
        if not (self.is_mounted and self.is_open):
            return
        table = self.query_one(BlockTable)
        width = self.query_one("#inspector-sources").content_size.width
        source = self._source
        still = f"frozen since {self._frozen_at}: f follows again" if self._frozen_at else ""
        title = f"blocks of {source.name}: {len(table.blocks)}" if source else "blocks"
        shown = "  ·  ".join(filter(None, [title, self._problem or still]))
        self.query_one("#inspector-title", Static).update(Content(shown))
        self.query_one("#inspector-source-heading", Static).update(Content(row_text(source_heading(width))))
        # Those around the chosen one where there are too many.
        first = min(max(0, self._chosen - _MOST_SOURCES // 2), max(0, len(self._sources) - _MOST_SOURCES))
        listed = list(enumerate(self._sources))[first : first + _MOST_SOURCES]
        rows = [source_row(one, width, is_chosen=number == self._chosen) for number, one in listed]
        self.query_one("#inspector-sources", Static).update(Content("\n").join(map(_content, rows)))
        self.query_one("#inspector-heading", Static).update(Content(row_text(block_heading(width))))
        self._draw_detail()

    def _draw_detail(self) -> None:
        place = self.query_one("#inspector-detail", Static)
        block, words = self.query_one(BlockTable).block or (None, "")
        snapshot = self._snapshot()
        groups = snapshot.groups if snapshot else ()
        place.update(Content("\n".join(detail_lines(block, groups, words, place.content_size.width))))


def _content(row: Row) -> Content:
    return Content("").join(Content.styled(text, Style(bold=look is Look.DIFFERENT)) for text, look in row)
