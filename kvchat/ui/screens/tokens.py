"""An answer as tokens: what else could have come, and going on from there."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import ClassVar

from textual import work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.style import Style
from textual.widgets import Static

from kvchat.chat.events import Alternative
from kvchat.errors import KvchatError
from kvchat.text.fit_text import clean_text, padded
from kvchat.ui.screens.dialog import InterruptingDialog

_REST_S = 0.06
_BAR_WIDTH = 20
_TEXT_WIDTH = 18
_LEAST_SHOWN = 1e-4

TokenChoice = tuple[int, int]
"""A place in an answer, and the token to put there."""


class TokensScreen(InterruptingDialog[TokenChoice | None]):
    """Moves over the tokens of an answer; the dismissal value is a place and another token.

    Args:
        texts: what each token says.
        token_ids: the tokens.
        alternatives, price: look up what else could have come at a place, and what going on from there
            costs; may wait for the engine.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left", "move(-1)", "Before"),
        Binding("right", "move(1)", "Next"),
        Binding("ctrl+left,pageup", "move(-10)", "Far before"),
        Binding("ctrl+right,pagedown", "move(10)", "Far next"),
        Binding("home", "move(-1000000)", "First"),
        Binding("end", "move(1000000)", "Last"),
        Binding("up", "choose(-1)", "Up"),
        Binding("down", "choose(1)", "Down"),
        Binding("enter", "take", "Go on"),
    ]

    def __init__(
        self,
        texts: Sequence[str],
        token_ids: Sequence[int],
        alternatives: Callable[[int], Awaitable[Sequence[Alternative]]],
        price: Callable[[int], Awaitable[str]],
    ) -> None:
        super().__init__()
        self._texts = [_shown(text) for text in texts]
        self._token_ids = token_ids
        self._alternatives = alternatives
        self._price_at = price
        self._at = 0
        self._chosen = 0
        self._known: dict[int, Sequence[Alternative]] = {}
        self._price = ""
        self._problem = ""

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog tokens"):
            yield Static("tokens", classes="dialog-title", markup=False)
            with VerticalScroll(id="tokens-text", can_focus=False):
                yield Static("", id="tokens-flow", markup=False)
            yield Static("", id="tokens-alternatives", markup=False)
            yield Static("", classes="dialog-keys", id="tokens-keys", markup=False)

    def on_mount(self) -> None:
        self._look_up(self._at)
        self._draw()

    @property
    def alternatives(self) -> Sequence[Alternative]:
        return self._known.get(self._at, ())

    def action_move(self, step: int) -> None:
        self._at = min(max(0, self._at + step), len(self._texts) - 1)
        self._chosen, self._price, self._problem = 0, "", ""
        self._look_up(self._at)
        self._draw()

    def action_choose(self, step: int) -> None:
        if self.alternatives:
            self._chosen = (self._chosen + step) % len(self.alternatives)
            self._draw()

    def action_take(self) -> None:
        if self.alternatives:
            self.dismiss((self._at, self.alternatives[self._chosen].token_id))

    @work(exclusive=True, group="look")
    async def _look_up(self, at: int) -> None:
        await asyncio.sleep(_REST_S)  # on the way through the answer nothing is looked up
        try:
            if at not in self._known:
                self._known[at] = await self._alternatives(at)
            price = await self._price_at(at)
        except KvchatError as error:
            self._problem = str(error)
        else:
            if at == self._at:
                self._price = price
        self._draw()

    def _draw(self) -> None:
        if not self.is_open:
            return
        self.query_one("#tokens-flow", Static).update(self._flow())
        listed = [self._line(number) for number in range(len(self.alternatives))]
        waiting = Content(self._problem or "asking the model …")
        self.query_one("#tokens-alternatives", Static).update(Content("\n").join(listed or [waiting]))
        keys = "←→ token · ↑↓ alternative · enter goes on from there · esc closes"
        self.query_one("#tokens-keys", Static).update(Content(f"{self._price}\n{keys}".lstrip()))

    def _flow(self) -> Content:
        """Return the answer with every second token underlined, so that their ends can be seen."""
        return Content("").join(
            Content.styled(text, "reverse" if at == self._at else "underline" if at % 2 else "")
            for at, text in enumerate(self._texts)
        )

    def _line(self, number: int) -> Content:
        one = self.alternatives[number]
        mark = "▸" if number == self._chosen else " "
        text = "■ ends here" if one.is_end else f"“{_shown(one.text)}”"
        bar = "█" * round(one.probability * _BAR_WIDTH)
        said = "  as it was" if one.token_id == self._token_ids[self._at] else ""
        share = f"{one.probability:.2%}" if one.probability >= _LEAST_SHOWN else "< 0.01%"
        line = f"{mark} {padded(text, _TEXT_WIDTH)} {share:>7}  {padded(bar, _BAR_WIDTH)}{said}"
        return Content.styled(line, Style(bold=number == self._chosen))


def _shown(text: str) -> str:
    return clean_text(text).replace("\n", "⏎\n")
