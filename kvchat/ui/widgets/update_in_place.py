"""Texts that take the place of others: the screen is laid out anew only where that moves something."""

from textual.content import Content
from textual.visual import VisualType
from textual.widget import Widget
from textual.widgets import Static


def update_in_place(shown: Static, content: Content) -> None:
    """Show another text; what stands around it is placed anew only if the text is not as high."""
    if not _takes_the_same_room(shown, shown.content, content):
        update_text(shown, content)
        return
    shown.update(content, layout=False)
    _measure_later(shown)


def update_text(shown: Static, content: Content) -> None:
    """Show another text, and place anew what stands around it."""
    shown.update(content)
    if not shown.is_mounted:
        # A layout may have come first, and what Textual has rendered and measured then it keeps until then.
        shown._layout_cache.clear()
        shown.clear_cached_dimensions()
        _measure_later(shown)


def _takes_the_same_room(shown: Static, before: VisualType, after: Content) -> bool:
    width = shown.outer_size.width - shown.styles.gutter.width
    if width <= 0 or not isinstance(before, Content):
        return False
    rules = shown.styles.get_rules()
    if shown.styles.is_auto_width and after.get_optimal_width(rules, width) > width:
        return False
    return before.get_height(rules, width) == after.get_height(rules, width)


def _measure_later(shown: Widget) -> None:
    """Let the next layout, whoever asks for it, measure a widget anew: at other widths Textual remembers how
    high the text was that stood there before.
    """
    shown._layout_updates += 1
    for ancestor in shown.ancestors:
        if not isinstance(ancestor, Widget):
            break
        ancestor._clear_arrangement_cache()
        ancestor._layout_updates += 1
        if not ancestor.styles.auto_dimensions:
            break
