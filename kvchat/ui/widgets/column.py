"""Widgets below each other."""

from textual.containers import Vertical
from textual.geometry import Size
from textual.layout import DockArrangeResult


class Column(Vertical):
    """Widgets that are as high as what they show, however high the column is. So each is measured once, where
    Textual does so again whenever the column becomes higher, and once more to know how high it is.
    """

    def arrange(self, size: Size, optimal: bool = False) -> DockArrangeResult:
        return super().arrange(Size(size.width, 0), optimal)
