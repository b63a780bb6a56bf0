"""Dialogs above the window, each of which goes once, and takes no key that was meant for the prompt."""

from collections.abc import Mapping, Sequence
from functools import partial
from time import monotonic
from typing import Any, ClassVar, Generic, TypeVar

from textual import events
from textual.await_complete import AwaitComplete
from textual.binding import Binding, BindingType
from textual.screen import ModalScreen
from textual.timer import Timer

Result = TypeVar("Result")

Typed = events.Key | events.Paste

REST_S = 0.3
"""A letter is an answer when nothing follows it for this long; else it began what is being typed."""
_SEEN_S = 1.0
"""Nobody answers with care sooner than this; enter waits for what follows it until then."""

_TEXT_KEYS = frozenset({"enter", "backspace", "ctrl+j", "shift+enter", "alt+enter"})


class Dialog(ModalScreen[Result], Generic[Result]):
    """A dialog that takes nothing away but itself: Textual would take away whatever is on top.

    A key that was pressed twice, or a list that was chosen from twice, dismisses it more than once.
    """

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,ctrl+c", "dismiss(None)", "Close")]

    @property
    def is_open(self) -> bool:
        """Whether it has its widgets: what it looks up may come when it has been dismissed."""
        return self in self.app.screen_stack

    def dismiss(self, result: Result | None = None) -> AwaitComplete:
        return super().dismiss(result) if self.is_active else AwaitComplete.nothing()


class Deferred:
    """What a dialog is dismissed with that went because the person was typing something else."""


class InterruptingDialog(Dialog[Result | Deferred], Generic[Result]):
    """A dialog that comes later than the key that asked for it, and so may come while something is typed.

    What was typed before it came belongs to the prompt, and so does every text that begins with a key that
    would answer: the dialog goes then, and whoever opened it offers it again.

    Attributes:
        answer_keys: what keys that are text too dismiss it with.
    """

    answer_keys: Mapping[str, Any] = {}

    def __init__(self) -> None:
        super().__init__()
        self._opened_s = monotonic()
        self._held: events.Key | None = None
        self._rest: Timer | None = None

    def text_of(self, event: Typed) -> Sequence[Typed] | None:
        """Return what of the keys pressed so far is text for the prompt; None: the key is the dialog's."""
        if isinstance(event, events.Key) and not self._is_text(event):
            self._stop_waiting()  # it may open something above this one, which a late answer would take away
            return None
        held, is_seen = self._held, event.time > self._opened_s + _SEEN_S
        if isinstance(event, events.Key) and event.key in self.answer_keys and event.time > self._opened_s:
            if event.key == "enter" and is_seen and (held is None or held.time > self._opened_s + _SEEN_S):
                self._answer(held or event)
                return ()
            if held is None:
                self._held = event
                self._rest = self.set_timer(REST_S, partial(self._look_whether_alone, event))
                return ()
        self._stop_waiting()
        self.dismiss(Deferred())
        return (event,) if held is None else (held, event)

    def _is_text(self, event: events.Key) -> bool:
        is_early = event.time <= self._opened_s or self._held is not None
        return event.is_printable or event.key in self.answer_keys or (is_early and event.key in _TEXT_KEYS)

    def _stop_waiting(self) -> None:
        if self._rest is not None:
            self._rest.stop()
        self._held = self._rest = None

    def _look_whether_alone(self, event: events.Key) -> None:
        """Answer behind all that is typed already: on a busy machine it may wait for longer than a rest."""
        self.app.call_later(lambda: self._answer(event) if self._held is event else None)

    def _answer(self, event: events.Key) -> None:
        self._stop_waiting()
        self.dismiss(self.answer_keys[event.key])
