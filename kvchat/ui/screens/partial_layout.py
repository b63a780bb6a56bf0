"""Layout of what is seen, where nothing but the conversation has changed.

Textual places every widget that is mounted for each line that an answer grows by, also the hundreds of an
earlier page that nobody sees, and tells each its size; while it scrolls it places those that are seen. Where
that makes any widget larger or smaller it places all once more, and nothing moves then.
"""

from collections.abc import Iterator, Mapping, Set
from typing import Self

from textual import events
from textual.geometry import Region, Size
from textual.map_geometry import MapGeometry
from textual.widget import Widget

from kvchat.ui.screens.part_compositor import PartCompositor
from kvchat.ui.screens.services import ServicesScreen


class PartialLayoutScreen(ServicesScreen):
    """Places only what is seen where all that was to be laid out lies inside one widget that scrolls.

    Attributes:
        scrolled: that widget; None: everything is always laid out.
    """

    scrolled: Widget | None = None
    _is_all_due = False
    _drawn: dict[Widget, MapGeometry] | None = None
    """What is on the screen, and where."""

    def __init__(self) -> None:
        super().__init__()
        self._compositor = PartCompositor()

    def refresh(
        self, *regions: Region, repaint: bool = True, layout: bool = False, recompose: bool = False
    ) -> Self:
        self._is_all_due = self._is_all_due or layout
        return super().refresh(*regions, repaint=repaint, layout=layout, recompose=recompose)

    def _refresh_layout(self, size: Size | None = None, scroll: bool = False) -> None:
        if size is None and self._is_all_inside():
            self._lay_out_seen()
        else:
            self._lay_out_all(size, scroll)

    def _is_all_inside(self) -> bool:
        """Whether everything that has asked for a layout lies inside the scrolled widget. It asks itself when
        what is in it has become higher, and has its own size from its parent.
        """
        scrolled, changed = self.scrolled, self._layout_widgets
        if scrolled is None or self._drawn is None or self._is_all_due or not changed:
            return False
        # Of each container the children that have asked, but for those which are containers here themselves.
        return all(
            node is scrolled
            or scrolled in node.ancestors
            or (node is scrolled.parent and children <= {scrolled})
            for node, children in changed.items()
        )

    def _lay_out_all(self, size: Size | None, scroll: bool) -> None:
        size = size or self.outer_size
        is_all = not scroll or bool(self._layout_widgets)
        if is_all and self._drawn is not None and self._drawn is not self._compositor._full_map:
            # What Textual compares the new places with is not what is on the screen.
            self._compositor._dirty_regions.add(size.region)
        if is_all and size and self.app._dom_ready:
            self._lay_out_once(size)
        else:
            super()._refresh_layout(size, scroll)
        self._is_all_due = self._is_all_due and not is_all
        self._note_drawn()

    def _lay_out_once(self, size: Size) -> None:
        """Do what Textual does for a layout, without another one for whoever is told another size."""
        compositor = self._compositor
        compositor.update_widgets(self._dirty_widgets)
        self._update_timer.pause()
        compositor._full_map_invalidated = False  # by a scroll before: who asks for a place has it made anew
        hidden, shown, resized = compositor.reflow(self, size)
        self._layout_widgets.clear()
        for widget in hidden:
            widget.post_message(events.Hide())
        self._tell_sizes(shown | resized)
        for widget in shown:
            widget.post_message(events.Show())
        self._draw_layout()

    def _lay_out_seen(self) -> None:
        """Do what Textual does for a scroll; widgets that have grown are told their size, too."""
        compositor = self._compositor
        compositor.update_widgets(self._dirty_widgets)
        self._update_timer.pause()
        drawn, dirty = self._drawn or {}, set(compositor._dirty_regions)
        compositor._visible_map = drawn
        exposed = compositor.reflow_visible(self, self.outer_size)
        self._layout_widgets.clear()
        self._note_drawn()
        # For Textual all has changed that is further down in what it scrolls with, also at the same place.
        compositor._dirty_regions = dirty.union(_changed(drawn, self._drawn or {}))
        grown = (widget for widget, place in compositor.layers if widget.outer_size != place.region.size)
        self._tell_sizes(exposed.union(grown))
        self._draw_layout()

    def _tell_sizes(self, told: Set[Widget]) -> None:
        """Tell widgets how large they are; `told`: those for which that is an event."""
        scrolled = self.scrolled
        window = scrolled.container_size if scrolled is not None else None
        for widget, place in self._compositor.layers:
            size = place.region.size
            widget._size_updated(size, place.virtual_size, place.container_size, layout=False)
            if widget in told:
                widget.post_message(events.Resize(size, place.virtual_size, place.container_size))
        if scrolled is not None and scrolled.container_size != window:
            scrolled.refresh(layout=True)  # its end was placed in the window that it had before

    def _draw_layout(self) -> None:
        if self.is_current:
            if self.app._batch_count:
                self.call_later(self._compositor_refresh)
            else:
                self._compositor_refresh()
        self.screen_layout_refresh_signal.publish(self)

    def _note_drawn(self) -> None:
        compositor = self._compositor
        seen = compositor._visible_map
        self._drawn = compositor._full_map if seen is None else seen


def _changed(before: Mapping[Widget, MapGeometry], after: Mapping[Widget, MapGeometry]) -> Iterator[Region]:
    """Yield where something was, or is, that is not where it was."""
    for widget in before.keys() | after.keys():
        places = [place for place in (before.get(widget), after.get(widget)) if place is not None]
        if len(places) < 2 or not _is_in_place(widget, *places):
            yield from filter(None, (place.clip.intersection(place.region) for place in places))


def _is_in_place(widget: Widget, old: MapGeometry, new: MapGeometry) -> bool:
    """Whether a widget looks the same at both places; what only holds others is seen nowhere else if it ends
    beyond the edges.
    """
    if (old.region, old.clip) == (new.region, new.clip):
        return True
    is_empty = widget.is_container and not widget.styles.gutter
    return is_empty and old.clip.intersection(old.region) == new.clip.intersection(new.region)
