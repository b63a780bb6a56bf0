"""Several answers to one question, side by side while they are written."""

from collections.abc import Callable, Iterator, Sequence
from typing import ClassVar

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Grid, Vertical, VerticalScroll
from textual.content import Content
from textual.style import Style
from textual.widgets import Static, TextArea

from kvchat.app.turn_thread import TurnFailed, TurnThread
from kvchat.chat.events import SampleDelta, SampleEvent, SamplesFinished
from kvchat.engine.api.events import PrefillProgress
from kvchat.session.tree import Finish, Turn
from kvchat.text.answer_footer import PrefillEta, progress_parts
from kvchat.text.figures import count_text, plural
from kvchat.text.fit_text import clean_text
from kvchat.ui.screens.dialog import InterruptingDialog, Typed

_DRAIN_S = 1 / 20
_LEAST_WIDTH = 32
"""Narrower columns stand on each other."""
_LEAST_HEIGHT = 8
"""Where they would be lower, the chosen one alone is shown."""


class CandidateView(VerticalScroll, can_focus=False):
    """One answer."""

    def __init__(self, number: int) -> None:
        super().__init__(classes="candidate")
        self._number = number
        self._text = ""
        self._heading = Static("", classes="candidate-heading", markup=False)
        self._body = Static("", markup=False)

    def compose(self) -> ComposeResult:
        yield self._heading
        yield self._body

    def on_mount(self) -> None:
        self.show(is_chosen=False)

    def add(self, text: str) -> None:
        self._text += clean_text(text)
        self._body.update(Content(self._text))

    def finish(self, answer: Turn) -> None:
        from kvchat.ui.widgets.answer_markdown import AnswerMarkdown

        self._text = clean_text(answer.text)
        self._body.update(AnswerMarkdown(self._text, self.app) if self._text.strip() else Content("nothing"))

    def show(self, *, is_chosen: bool) -> None:
        mark = "▸" if is_chosen else " "
        words = plural(len(self._text.split()), "word")
        self._heading.update(Content(f"{mark} {self._number + 1} · {words}"))
        self.set_class(is_chosen, "-chosen")


class CompareScreen(InterruptingDialog[Turn | None]):
    """Shows candidates while they are written; the dismissal value is the one to go on with.

    Args:
        num: how many.
        produce: begins to answer; runs in a thread.
        stop: ends it early, from any thread.
        price: what it costs, known before.
        prompt: takes what is typed here, and is shown again while it holds anything.

    Attributes:
        answers: as they are stored; none before all have ended.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left,up", "move(-1)", "Before"),
        Binding("right,down,tab", "move(1)", "Next"),
        Binding("enter", "take", "Take"),
        Binding("escape,ctrl+c", "leave", "Stop, or keep the old answer"),
        *(Binding(str(number), f"choose({number - 1})", show=False) for number in range(1, 9)),
    ]

    def __init__(
        self,
        num: int,
        produce: Callable[[], Iterator[SampleEvent]],
        stop: Callable[[], None],
        price: str,
        prompt: TextArea,
    ) -> None:
        super().__init__()
        self._num = num
        self._produce = produce
        self._stop = stop
        self._prompt = prompt
        self._feed = TurnThread()
        self.answers: tuple[Turn, ...] = ()
        self._problem: str | None = None
        self._views = [CandidateView(number) for number in range(num)]
        self._chosen = 0
        self._is_typing = False
        self._is_held_back = False
        self._shows_one = False
        self._status = Static(price, id="compare-status", markup=False)
        self._pace = PrefillEta()

    def compose(self) -> ComposeResult:
        with Vertical(classes="compare"):
            yield self._status
            with Grid(id="candidates"):
                yield from self._views
            yield Static("", id="compare-prompt", markup=False)
            yield Static("", id="compare-keys", markup=False)

    def on_mount(self) -> None:
        self._feed.start(self._produce, lambda: None)
        self._timer = self.set_interval(_DRAIN_S, self._drain)
        self.watch(self._prompt, "selection", self._show_prompt)
        self._show()

    def on_resize(self) -> None:
        grid = self.query_one("#candidates", Grid)
        columns = max(1, min(self._num, self.size.width // _LEAST_WIDTH))
        rows = -(-self._num // columns)
        self._shows_one = self.size.height < rows * _LEAST_HEIGHT
        grid.styles.grid_size_columns = 1 if self._shows_one else columns
        grid.styles.grid_size_rows = 1 if self._shows_one else rows
        self._show()

    def text_of(self, event: Typed) -> Sequence[Typed] | None:
        """Return what is no key of this screen, which stays: what is written here takes its time.

        Behind a text that was begun, all keys that move in texts belong to it until `esc`. Enter says what to
        do then: it neither takes an answer nor sends a message into a conversation that is being compared.
        """
        if isinstance(event, events.Paste):
            return self._typed(event)
        if self._is_typing and event.key in ("escape", "enter"):
            self._is_typing = self._is_held_back = event.key == "enter"
            self._show()
            return ()
        is_own = event.time > self._opened_s and event.key in self._bindings.key_to_bindings
        if self._is_typing and (is_own or event.key == "backspace") and event.key != "ctrl+c":
            return (event,)
        return self._typed(event) if not is_own and self._is_text(event) else None

    def _typed(self, event: Typed) -> Sequence[Typed]:
        self._is_typing, self._is_held_back = True, False
        self._show()
        return (event,)

    def action_move(self, step: int) -> None:
        self.action_choose((self._chosen + step) % self._num)

    def action_choose(self, number: int) -> None:
        if number < self._num:
            self._chosen = number
            self._show()

    def action_take(self) -> None:
        if not self._feed.is_running and self.answers:
            self.dismiss(self.answers[self._chosen])

    def action_leave(self) -> None:
        if self._feed.is_running:
            self._stop()
        else:
            self.dismiss(None)

    def _drain(self) -> None:
        for event in self._feed.take():
            match event:
                case PrefillProgress():
                    parts = progress_parts(event, self._pace.left_s(event))
                    self._status.update(Content(" · ".join(parts)))
                case SampleDelta() if not event.reasoning:
                    self._views[event.sample].add(event.text)
                case SamplesFinished(answers=answers, error=error):
                    self.answers, self._problem = answers, error
                    self._finish()
                case TurnFailed(error=error):
                    self._problem = str(error)
        if not self._feed.is_running:
            self._timer.stop()
        self._show()

    def _finish(self) -> None:
        for number, answer in enumerate(self.answers):
            self._views[number].finish(answer)
        usage = self.answers[0].usage
        if usage.prompt_tokens:
            parts = f"reused {count_text(usage.cached_tokens)} of {count_text(usage.prompt_tokens)}"
            computed = count_text(usage.computed_tokens)
            words = f"{parts} · computed {computed}, once for all {self._num} answers"
            texts = {answer.text for answer in self.answers}
            if len(texts) == 1 and all(answer.finish is Finish.COMPLETE for answer in self.answers):
                words = f"all {self._num} alike, by chance · {words}"
            self._status.update(Content(words))

    def _show_prompt(self) -> None:
        """Show the prompt's line around its cursor."""
        shown, (row, column) = self.query_one("#compare-prompt", Static), self._prompt.cursor_location
        line, room = self._prompt.document.get_line(row), self.size.width // 3
        under = Content.styled(line[column : column + 1] or " ", Style(reverse=True))
        shown.display = bool(self._prompt.text)
        shown.update(
            Content(f"› {line[max(0, column - room) : column]}") + under + Content(line[column + 1 :])
        )

    def _show(self) -> None:
        for number, view in enumerate(self._views):
            view.show(is_chosen=number == self._chosen)
            view.display = number == self._chosen or not self._shows_one
        keys = "esc stops them all" if self._feed.is_running else "esc keeps the old answer"
        take = "" if self._feed.is_running else "enter takes it · "
        problem = f"{self._problem} · " if self._problem else ""
        choice = f"1–{self._num} or ←→ · {take}{keys}"
        if self._is_typing:
            state = "not sent: take one first" if self._is_held_back else "you are typing the next message"
            choice = f"esc goes back to the answers · {state}"
        for line in self.query("#compare-keys").results(Static):  # none before it is open
            line.update(Content(problem + choice))
