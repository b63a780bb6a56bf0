"""Composer at the bottom of the window: the prompt, and above it what waits to be asked, sent or attached."""

from collections.abc import Sequence

from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.style import Style
from textual.widgets import Static

from kvchat.ui.widgets.prompt_input import Choice, Prompt

_PLACES = ("notices", "offers", "download", "queue", "attachments", "commands")
_MOST_LINES = 3
_MOST_CHOICES = 6
_ABOVE = 0.3
"""Of the screen's height, at most, for the lines above the prompt; the stylesheet says the same."""


class Composer(Vertical):
    """Is lower without lines above the prompt."""

    def compose(self) -> ComposeResult:
        with Vertical(id="above-prompt"):
            for place in _PLACES:
                yield Static("", id=place, markup=False)
        with Horizontal(id="prompt-row"):
            yield Static("›", id="prompt-mark", markup=False)
            yield Prompt(id="prompt")

    def on_mount(self) -> None:
        for place in _PLACES:
            self.draw_lines(place, ())

    def on_resize(self) -> None:
        for rack in self.screen.query("ToastRack"):
            rack.styles.margin = (0, 0, self.screen.size.height - self.region.y, 0)

    def show_commands(self, candidates: tuple[Choice, ...], chosen: int) -> None:
        """Show what the line may become, in the rows that the other lines leave."""
        above, listed = self.query_one("#above-prompt"), self.query_one("#commands", Static)
        taken = sum(one.outer_size.height for one in above.displayed_children if one is not listed)
        room = max(1, int(self.screen.size.height * _ABOVE) - taken)
        listed.display = bool(candidates)
        if candidates:
            listed.update(_lines(candidates, chosen, min(room, _MOST_CHOICES)))

    def draw_lines(self, place: str, lines: Sequence[str]) -> None:
        """Draw lines above the prompt. `place`: notices, offers, download, queue or attachments."""
        for widget in self.query(f"#{place}").results(Static):  # none while the window is being closed
            if lines or widget.display:
                widget.display = bool(lines)
                widget.update(Content("\n".join(lines[:_MOST_LINES])))


def _lines(candidates: tuple[Choice, ...], chosen: int, num_rows: int) -> Content:
    """Draw the candidates around the chosen one, and which they are where there are more."""
    num = len(candidates) if len(candidates) <= num_rows else max(1, num_rows - 1)
    start = max(0, min(chosen - num // 2, len(candidates) - num))
    usage_width = max(len(command.usage) for command in candidates)
    lines = [
        _line(command, usage_width, is_chosen=start + index == chosen)
        for index, command in enumerate(candidates[start : start + num])
    ]
    if num < min(num_rows, len(candidates)):
        more = f"  ↑↓ {start + 1}–{start + num} of {len(candidates)}"
        lines.append(Content.styled(more, "$note"))
    return Content("\n").join(lines)


def _line(command: Choice, usage_width: int, *, is_chosen: bool) -> Content:
    mark = "▸ " if is_chosen else "  "
    usage = Content.styled(f"{mark}{command.usage:<{usage_width}}", Style(bold=is_chosen))
    return usage + Content.styled(f"   {command.summary}", "" if is_chosen else "$note")
