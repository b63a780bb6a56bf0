"""The sessions on the left, with their branches."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.content import Content
from textual.message import Message
from textual.style import Style
from textual.timer import Timer
from textual.widgets import OptionList
from textual.widgets.option_list import Option

from kvchat.session.tree import BranchName, SessionId
from kvchat.ui.widgets.session_rows import (
    ListOptions,
    SessionLine,
    SessionWithBranches,
    line_text,
    session_lines,
)

REST_S = 0.15


class SessionList(OptionList):
    """Lines to choose from. Enter opens, delete asks to delete."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("delete", "delete", "Delete", show=False)]

    @dataclass
    class Opened(Message):
        """A session, or one of its branches, was chosen."""

        session_id: SessionId
        branch: BranchName | None

    @dataclass
    class Selected(Message):
        """The highlight rests on a line while the list has the focus; None: it has gone."""

        session_id: SessionId | None
        branch: BranchName | None = None

    @dataclass
    class DeleteAsked(Message):
        session_id: SessionId

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id, markup=False, compact=True)
        self.lines: tuple[SessionLine, ...] = ()
        self._rest: Timer | None = None

    def show_sessions(self, sessions: Sequence[SessionWithBranches], options: ListOptions) -> None:
        """Draw the sessions; the highlight stays on its line."""
        lines = session_lines(sessions, options)
        if lines != self.lines:
            before, self.lines = self.lines, lines
            self._draw(is_same_list=[line.key for line in before] == [line.key for line in lines])

    def on_resize(self) -> None:
        self._draw(is_same_list=True)

    def action_delete(self) -> None:
        if self.highlighted is not None:
            self.post_message(self.DeleteAsked(self.lines[self.highlighted].session_id))

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        event.stop()
        line = self.lines[event.option_index]
        self.post_message(self.Opened(line.session_id, line.branch))

    def on_option_list_option_highlighted(self) -> None:
        self._rest_later()

    def on_focus(self) -> None:
        self._rest_later()

    def on_blur(self) -> None:
        self._stop_resting()
        self.post_message(self.Selected(None))

    def _rest_later(self) -> None:
        """Tell the selection when it has rested for a moment, not on the way through the list."""
        self._stop_resting()
        if self.has_focus:
            self._rest = self.set_timer(REST_S, self._tell_selected)

    def _stop_resting(self) -> None:
        if self._rest is not None:
            self._rest.stop()
            self._rest = None

    def _tell_selected(self) -> None:
        if self.highlighted is not None and self.has_focus:
            line = self.lines[self.highlighted]
            self.post_message(self.Selected(line.session_id, line.branch))

    def _draw(self, *, is_same_list: bool) -> None:
        if is_same_list and self.option_count == len(self.lines):
            for index, line in enumerate(self.lines):
                self.replace_option_prompt_at_index(index, self._prompt(line))
            return
        highlighted = self.highlighted_option.id if self.highlighted_option else None
        self.set_options(Option(self._prompt(line), id=line.key) for line in self.lines)
        keys = [line.key for line in self.lines]
        if highlighted in keys:
            self.highlighted = keys.index(highlighted)

    def _prompt(self, line: SessionLine) -> Content:
        name, figures = line_text(line, max(8, self.scrollable_content_region.width - 2))
        return Content.styled(name, Style(bold=line.is_active)) + Content.styled(figures, Style(dim=True))
