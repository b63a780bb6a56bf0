"""Composer at the bottom of the window: the prompt, and above it what waits to be asked, sent or attached."""

from collections.abc import Sequence

from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.widgets import Static

from kvchat.ui.widgets.prompt_input import Choice, CompletionList, Prompt

_MOST_LINES = 3
_ABOVE = 0.3
"""Of the screen's height, at most, for the lines above the prompt; the stylesheet says the same."""


class Composer(Vertical):
    """Is lower without lines above the prompt."""

    def compose(self) -> ComposeResult:
        with Vertical(id="above-prompt"):
            yield Static("", id="notices", markup=False)
            yield Static("", id="offers", markup=False)
            yield Static("", id="download", markup=False)
            yield Static("", id="queue", markup=False)
            yield Static("", id="attachments", markup=False)
            yield CompletionList(id="commands")
        with Horizontal(id="prompt-row"):
            yield Static("›", id="prompt-mark", markup=False)
            yield Prompt(id="prompt")

    def on_mount(self) -> None:
        for place in ("notices", "offers", "download", "queue", "attachments"):
            self.draw_lines(place, ())

    def on_resize(self) -> None:
        for rack in self.screen.query("ToastRack"):
            rack.styles.margin = (0, 0, self.screen.size.height - self.region.y, 0)

    def show_commands(self, candidates: tuple[Choice, ...], chosen: int) -> None:
        """Show what the line may become, in the rows that the other lines leave."""
        above = self.query_one("#above-prompt")
        listed = above.query_one(CompletionList)
        taken = sum(one.outer_size.height for one in above.displayed_children if one is not listed)
        listed.show_commands(candidates, chosen, max(1, int(self.screen.size.height * _ABOVE) - taken))

    def draw_lines(self, place: str, lines: Sequence[str]) -> None:
        """Draw lines above the prompt. `place`: notices, offers, download, queue or attachments."""
        for widget in self.query(f"#{place}").results(Static):  # none while the window is being closed
            if lines or widget.display:
                widget.display = bool(lines)
                widget.update(Content("\n".join(lines[:_MOST_LINES])))
