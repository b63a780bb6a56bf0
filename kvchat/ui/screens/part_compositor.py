"""A compositor that renders what has changed, and what is seen.

For any change Textual renders every widget that overlaps the rectangle around all that has changed, each in
its whole height: for a letter in the prompt and a figure in the cache panel nearly everything on the screen.
What is hidden behind others is rendered too, above all the lines of those that only hold others.
"""

from collections.abc import Sequence
from itertools import pairwise

from textual._compositor import ChopsUpdate, Compositor, LayoutUpdate
from textual.geometry import Region
from textual.strip import Strip
from textual.widget import Widget

Chops = dict[int, Strip | None]
"""The pieces of a line between the edges of widgets, by the column where they begin."""
Span = tuple[int, int, int]
"""A line, and the columns [start, end) of it that have changed."""


class PartCompositor(Compositor):
    """Asks a widget for those of its lines that have changed, if it is in front there."""

    def render_full_update(self, simplify: bool = False) -> LayoutUpdate:
        if simplify:
            return super().render_full_update(simplify)
        self._dirty_regions.clear()
        screen = self.size.region
        chops = self._render_spans([(y, 0, screen.width) for y in screen.line_range])
        return LayoutUpdate([[piece for piece in pieces.values() if piece] for pieces in chops], screen)

    def render_partial_update(self) -> ChopsUpdate | None:
        changed, self._dirty_regions = self._dirty_regions, set()
        screen = self.size.region
        spans = list(self._regions_to_spans(seen for one in changed if (seen := one.intersection(screen))))
        if not spans:
            return None
        return ChopsUpdate(self._render_spans(spans), spans, [cuts[1:] for cuts in self.cuts])

    def _render_spans(self, spans: Sequence[Span]) -> list[Chops]:
        """Return the pieces of all lines; outside the spans there may be none."""
        chops: list[Chops] = [dict.fromkeys(cuts[:-1]) for cuts in self.cuts]
        missing: dict[int, set[int]] = {}
        for y, start, end in spans:
            columns = {left for left, right in pairwise(self.cuts[y]) if left < end and right > start}
            missing.setdefault(y, set()).update(columns)
        for widget, (region, clip) in self.visible_widgets.items():  # from the front to the back
            seen = region.intersection(clip)
            if lines := [y for y in sorted(missing) if _is_in(seen, y, missing[y])]:
                self._render_lines(widget, region, seen, lines, chops, missing)
        return chops

    def _render_lines(
        self,
        widget: Widget,
        region: Region,
        seen: Region,
        lines: Sequence[int],
        chops: Sequence[Chops],
        missing: dict[int, set[int]],
    ) -> None:
        """Let a widget render what is missing in some lines, and note that it is there."""
        top, offset = lines[0], seen.offset - region.offset
        part = Region(offset.x, top - region.y, seen.width, lines[-1] + 1 - top)
        strips = widget.render_lines(part)
        for y in lines:
            columns = [cut for cut in self.cuts[y] if seen.x <= cut <= seen.right]
            pieces = strips[y - top].divide([column - seen.x for column in columns[1:]])
            for column, piece in zip(columns, pieces, strict=False):
                if column in missing[y]:
                    missing[y].remove(column)
                    chops[y][column] = piece
            if not missing[y]:
                del missing[y]


def _is_in(seen: Region, y: int, columns: set[int]) -> bool:
    return seen.y <= y < seen.bottom and any(seen.x <= column < seen.right for column in columns)
