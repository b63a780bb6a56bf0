"""The commands that the line in the prompt may become."""

from textual.content import Content
from textual.style import Style
from textual.widgets import Static

from kvchat.ui.widgets.prompt import Choice

_MAX_ROWS = 6


class CommandList(Static):
    """A few lines above the prompt; the prompt moves the choice."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__("", id=id, markup=False)
        self.display = False

    def show_commands(self, candidates: tuple[Choice, ...], chosen: int) -> None:
        self.display = bool(candidates)
        if candidates:
            self.update(_lines(candidates, chosen))


def _lines(candidates: tuple[Choice, ...], chosen: int) -> Content:
    start = max(0, min(chosen - _MAX_ROWS // 2, len(candidates) - _MAX_ROWS))
    shown = candidates[start : start + _MAX_ROWS]
    usage_width = max(len(command.usage) for command in candidates)
    lines = [
        _line(command, usage_width, is_chosen=start + index == chosen) for index, command in enumerate(shown)
    ]
    return Content("\n").join(lines)


def _line(command: Choice, usage_width: int, *, is_chosen: bool) -> Content:
    mark = "▸ " if is_chosen else "  "
    usage = Content.styled(f"{mark}{command.usage:<{usage_width}}", Style(bold=is_chosen))
    return usage + Content.styled(f"   {command.summary}", Style(dim=not is_chosen))
