"""Lists of the inspector, of whose rows only those in sight are made: a long conversation has thousands."""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from textual import events
from textual.binding import Binding, BindingType
from textual.geometry import Size
from textual.message import Message
from textual.strip import Strip

from kvchat.engine.api.inspection import InspectedBlock
from kvchat.ui.widgets.cache.inspector_rows import block_row
from kvchat.ui.widgets.cache.row_view import Row, RowView

BlockWithWords = tuple[InspectedBlock, str]
_FAR = 10**9


class RowList(RowView, can_focus=True):
    """Rows that keys scroll.

    Attributes:
        values: what there is a row for.
    """

    values: Sequence[Any] = ()
    _row_of: Callable[[Any], Row]

    def show(self, values: Sequence[Any], row_of: Callable[[Any], Row]) -> None:
        self._row_of = row_of
        if values != self.values:
            self.values = values
            self.virtual_size = Size(0, len(values))
            self.refresh()

    def render_line(self, y: int) -> Strip:
        line = y + self.scroll_offset.y
        return self.strip_of(self._row_of(self.values[line]) if line < len(self.values) else ())


class BlockTable(RowList):
    """A list of blocks, each with its words, and a chosen one.

    Attributes:
        chosen: number of the block that the person looks at.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "move(-1)", "Up", show=False),
        Binding("down", "move(1)", "Down", show=False),
        Binding("pageup", "page(-1)", "Page up", show=False),
        Binding("pagedown", "page(1)", "Page down", show=False),
        Binding("home", f"move(-{_FAR})", "First", show=False),
        Binding("end", f"move({_FAR})", "Last", show=False),
    ]

    class Moved(Message):
        """The person looks at another block."""

    chosen = 0
    _moved: frozenset[int] = frozenset()

    @property
    def block(self) -> BlockWithWords | None:
        return self.values[self.chosen] if self.chosen < len(self.values) else None

    def show_blocks(self, blocks: Sequence[BlockWithWords], moved: frozenset[int]) -> None:
        """Draw these blocks; `moved`: the first positions of those whose tier has changed."""
        self.chosen = min(self.chosen, max(0, len(blocks) - 1))
        if moved != self._moved:
            self._moved = moved
            self.refresh()
        self.show(blocks, self._row)

    def choose(self, number: int) -> None:
        self.chosen = min(max(0, number), max(0, len(self.values) - 1))
        top, height = self.scroll_offset.y, self.size.height
        if not top <= self.chosen < top + height:
            self.scroll_to(y=self.chosen - height // 2, animate=False)
        self.refresh()
        self.post_message(self.Moved())

    def action_move(self, step: int) -> None:
        self.choose(self.chosen + step)

    def action_page(self, direction: int) -> None:
        self.choose(self.chosen + direction * max(1, self.size.height - 1))

    def on_click(self, event: events.Click) -> None:
        self.choose(event.y + self.scroll_offset.y)

    def _row(self, value: BlockWithWords) -> Row:
        block, words = value
        is_chosen, is_moved = value is self.block, block.start in self._moved
        return block_row(block, words, self.size.width, is_chosen=is_chosen, is_moved=is_moved)
