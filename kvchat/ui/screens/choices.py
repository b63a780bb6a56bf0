"""Questions: yes or no, a line to choose, to write or to find again among messages; and a note to read."""

from collections.abc import Sequence
from typing import ClassVar

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option

from kvchat.text.fit_text import fitted, one_line
from kvchat.ui.screens.dialog import Dialog, InterruptingDialog, Typed
from kvchat.ui.widgets.list_search_field import FindField


class NoteScreen(InterruptingDialog[None]):
    """A title and a text, as they are."""

    answer_keys = {"enter": None, "q": None}

    def __init__(self, title: str, text: str) -> None:
        super().__init__()
        self._title = title
        self._text = text

    def compose(self) -> ComposeResult:
        with VerticalScroll(classes="dialog"):
            yield Static(self._title, classes="dialog-title", markup=False)
            yield Static(self._text, markup=False)
            yield Static("esc closes", classes="dialog-keys", markup=False)


class ConfirmScreen(InterruptingDialog[bool]):
    """Asks before something is lost; the dismissal value says whether to go on.

    Args:
        is_offer: nobody has asked for it; enter alone may be meant for the prompt, and agrees to nothing.
        default: what enter answers.
    """

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,ctrl+c", "dismiss(False)", "No")]

    def __init__(
        self, question: str, consequence: str, *, is_offer: bool = False, default: bool = True
    ) -> None:
        super().__init__()
        self.answer_keys = {"y": True, "enter": default, "n": False}
        self._question = question
        self._consequence = consequence
        self._is_offer = is_offer

    def text_of(self, event: Typed) -> Sequence[Typed] | None:
        is_enter = isinstance(event, events.Key) and event.key == "enter" and event.time > self._opened_s
        if is_enter and self._is_offer and self._held is None:
            return ()
        return super().text_of(event)

    def compose(self) -> ComposeResult:
        with VerticalScroll(classes="dialog"):
            yield Static(self._question, classes="dialog-title", markup=False)
            yield Static(self._consequence, markup=False)
            keys = "enter yes · esc no" if self.answer_keys["enter"] else "y yes · enter or esc no"
            keys = "y yes · esc no" if self._is_offer else keys
            yield Static(keys, classes="dialog-keys", markup=False)


class ChoiceScreen(InterruptingDialog[int | None]):
    """A list; the dismissal value is the number of the line that was chosen.

    Args:
        notes: what is said of each line while it is highlighted.
        keys: what chooses each line too.
    """

    def __init__(
        self,
        title: str,
        lines: Sequence[str | Content],
        *,
        highlighted: int = 0,
        notes: Sequence[str] = (),
        keys: Sequence[str] = (),
    ) -> None:
        super().__init__()
        self.answer_keys = {key: number for number, key in enumerate(keys)}
        self._notes = notes
        self._title = title
        self._lines = lines
        self._highlighted = highlighted
        self._hint = f"{'enter or the letter' if keys else 'enter chooses'} · esc closes"

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog wide"):
            yield Static(self._title, classes="dialog-title", markup=False)
            yield OptionList(*map(Option, self._lines), markup=False, compact=True)
            yield Static(self._hint, classes="dialog-keys", markup=False)

    def on_mount(self) -> None:
        listed = self.query_one(OptionList)
        listed.highlighted = self._highlighted if self._lines else None
        listed.focus()

    def on_option_list_option_highlighted(self, event: OptionList.OptionHighlighted) -> None:
        if self._notes:
            words = f"{self._notes[event.option_index]}\n{self._hint}"
            self.query_one(".dialog-keys", Static).update(Content(words))

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        self.dismiss(event.option_index)


class LineScreen(Dialog[str | None]):
    """One line; the dismissal value is what was written."""

    def __init__(self, title: str, value: str, hint: str) -> None:
        super().__init__()
        self._title = title
        self._value = value
        self._hint = hint

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog"):
            yield Static(self._title, classes="dialog-title", markup=False)
            yield Input(self._value, compact=True)
            yield Static(self._hint, classes="dialog-keys", markup=False)

    def on_mount(self) -> None:
        self.query_one(Input).focus()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        self.dismiss(event.value.strip())


_MOST_FOUND = 100
_LINE_LEN = 200


class _Found(Option):
    """A message in the list. Another may be at its place by the time that it is known to be chosen."""

    def __init__(self, message: str) -> None:
        super().__init__(fitted(one_line(message), _LINE_LEN))
        self.message = message


class PromptHistoryScreen(Dialog[str | None]):
    """The newest first; the dismissal value is the message that was chosen."""

    def __init__(self, messages: Sequence[str]) -> None:
        super().__init__()
        self._messages = tuple(reversed(messages))

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog wide"):
            yield Static("earlier messages", classes="dialog-title", markup=False)
            yield FindField("words")
            yield OptionList(markup=False, compact=True)
            yield Static("enter puts it into the prompt · esc closes", classes="dialog-keys", markup=False)

    def on_mount(self) -> None:
        self._show("")
        self.query_one(FindField).focus()

    def on_input_changed(self, event: Input.Changed) -> None:
        self._show(event.value)

    def on_input_submitted(self) -> None:
        self.query_one(OptionList).action_select()

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        if isinstance(event.option, _Found):
            self.dismiss(event.option.message)

    def _show(self, words: str) -> None:
        wanted = words.casefold().split()
        found = [one for one in self._messages if all(word in one.casefold() for word in wanted)]
        listed = self.query_one(OptionList)
        listed.set_options(map(_Found, found[:_MOST_FOUND]))
        listed.highlighted = 0 if found else None
