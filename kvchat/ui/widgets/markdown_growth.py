"""Blocks of Markdown that grow: a piece of text changes what it changes, everything else keeps its widgets.

For every piece Textual takes the last block of a document away and mounts it anew, a list with all its items,
and has the whole screen laid out.
"""

from collections.abc import Sequence

from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.widget import Widget
from textual.widgets._markdown import (
    MarkdownBlock,
    MarkdownBullet,
    MarkdownBulletList,
    MarkdownFence,
    MarkdownList,
    MarkdownListItem,
    MarkdownOrderedList,
    MarkdownParagraph,
)

from kvchat.ui.widgets.update_in_place import update_in_place


class GrowingParagraph(MarkdownParagraph):
    """A paragraph that moves what is around it only when its height changes."""

    def set_content(self, content: Content) -> None:
        self._content = content
        update_in_place(self, content)


class GrowingBulletList(MarkdownBulletList):
    """A list that keeps its items."""

    async def _update_from_block(self, block: MarkdownBlock) -> None:
        if not await _grow_list(self, block):
            await super()._update_from_block(block)


class GrowingOrderedList(MarkdownOrderedList):
    """A numbered list that keeps its items while their numbers are as wide as they were."""

    async def _update_from_block(self, block: MarkdownBlock) -> None:
        if not await _grow_list(self, block):
            await super()._update_from_block(block)


async def _grow_list(shown: MarkdownList, new: MarkdownBlock) -> bool:
    """Let a list have the items of one that was parsed anew.

    Returns:
        False if what stands there already would change: it is to be drawn anew.
    """
    items = [item for item in new._blocks if isinstance(item, MarkdownListItem)]
    rows = list(shown.children)
    if type(new) is not type(shown) or not rows or len(items) < len(rows):
        return False
    symbols = _symbols(shown, items)
    if [_symbol(row) for row in rows] != symbols[: len(rows)]:
        return False
    for row, item in zip(rows, items, strict=False):
        await _grow(row.children[1], item._blocks)
    more = [_row(symbol, item) for symbol, item in zip(symbols[len(rows) :], items[len(rows) :], strict=True)]
    if more:
        await shown.mount_all(more)
    return True


async def _grow(parent: Widget, blocks: Sequence[MarkdownBlock]) -> None:
    """Draw blocks in place of those that a widget has; from the first that is of another sort on, anew."""
    shown = list(parent.children)
    kept = 0
    for old, new in zip(shown, blocks, strict=False):
        if not await _take_over(old, new):
            break
        kept += 1
    if kept < len(shown):
        await parent.remove_children(shown[kept:])
    if kept < len(blocks):
        await parent.mount_all(blocks[kept:])


async def _take_over(old: Widget, new: MarkdownBlock) -> bool:
    """Let a block say what another one says, and return whether it can."""
    if type(old) is not type(new):
        return False
    if isinstance(old, MarkdownList):
        return await _grow_list(old, new)
    if isinstance(old, MarkdownFence) and isinstance(new, MarkdownFence):
        if (old.code, old.lexer) != (new.code, new.lexer):
            await old._update_from_block(new)
        return True
    if isinstance(old, MarkdownParagraph):
        if not _is_same(old._content, new._content):
            await old._update_from_block(new)
        return True
    return False


def _is_same(one: Content, other: Content) -> bool:
    return one.plain == other.plain and one.spans == other.spans


def _symbols(shown: MarkdownList, items: Sequence[MarkdownListItem]) -> list[str]:
    """Return what Textual puts before each item: a bullet, or numbers in one column."""
    if not isinstance(shown, MarkdownOrderedList):
        return [item.bullet for item in items]
    first = items[0].bullet
    start = int(first) if first.isdecimal() else 1
    numbers = [f"{number}. " for number in range(start, start + len(items))]
    width = max(map(len, numbers)) + 1
    return [number.rjust(width) for number in numbers]


def _symbol(row: Widget) -> str:
    return row.query_one(MarkdownBullet).symbol


def _row(symbol: str, item: MarkdownListItem) -> Horizontal:
    bullet = MarkdownBullet()
    bullet.symbol = symbol
    return Horizontal(bullet, Vertical(*item._blocks))
