"""Blocks in lines, of which only those on the screen are made: a long conversation has thousands."""

from collections.abc import Sequence
from typing import ClassVar

from textual import events
from textual.binding import Binding, BindingType
from textual.geometry import Size
from textual.message import Message
from textual.strip import Strip

from kvchat.engine.api.inspection import InspectedBlock
from kvchat.ui.widgets.cache.inspector_rows import block_row
from kvchat.ui.widgets.cache.row_view import RowView

_FAR = 10**9


class BlockTable(RowView, can_focus=True):
    """A list of blocks with a chosen one.

    Attributes:
        blocks: what is shown, and the words of each.
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

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.blocks: Sequence[tuple[InspectedBlock, str]] = ()
        self.chosen = 0
        self._moved: frozenset[int] = frozenset()

    @property
    def block(self) -> tuple[InspectedBlock, str] | None:
        """The chosen block and its words, if there is any."""
        return self.blocks[self.chosen] if self.chosen < len(self.blocks) else None

    def show(self, blocks: Sequence[tuple[InspectedBlock, str]], moved: frozenset[int] = frozenset()) -> None:
        """Draw these blocks; `moved`: the first positions of those whose tier has changed."""
        if (blocks, moved) == (self.blocks, self._moved):
            return
        self.blocks, self._moved = blocks, moved
        self.chosen = min(self.chosen, max(0, len(blocks) - 1))
        self.virtual_size = Size(0, len(blocks))
        self.refresh()

    def choose(self, number: int) -> None:
        self.chosen = min(max(0, number), max(0, len(self.blocks) - 1))
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

    def render_line(self, y: int) -> Strip:
        line = y + self.scroll_offset.y
        if line >= len(self.blocks):
            return self.strip_of(())
        block, words = self.blocks[line]
        is_chosen, is_moved = line == self.chosen, block.start in self._moved
        return self.strip_of(block_row(block, words, self.size.width, is_chosen=is_chosen, is_moved=is_moved))
