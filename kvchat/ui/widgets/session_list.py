"""The sessions on the left, with their branches and what was found in them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.content import Content
from textual.geometry import Size
from textual.message import Message
from textual.reactive import Reactive
from textual.style import Style
from textual.timer import Timer
from textual.widgets import OptionList
from textual.widgets.option_list import Option

from kvchat.session.tree import BranchName, SessionId, TurnId
from kvchat.ui.widgets.session_rows import (
    SessionLine,
    SessionListOptions,
    SessionWithBranches,
    line_text,
    session_lines,
)

REST_S = 0.4
_NOTHING = "no title and no message has all of these words"


class SessionList(OptionList):
    """Lines to choose from. Enter opens, left and right fold branches; other keys stand for commands that are
    meant for the chosen line and not for the conversation on screen.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "select", "Open"),
        Binding("delete", "ask('delete')", "Delete"),
        Binding("ctrl+r", "ask('title')", "Rename"),
        Binding("ctrl+k", "ask('pin')", "Pin"),
        Binding("ctrl+e", "ask('export')", "Export"),
        Binding("escape", "screen.stop", "Back", id="stop"),
        Binding("left", "fold(True)", "Fold", show=False),
        Binding("right", "fold(False)", "Unfold", show=False),
    ]

    virtual_size = Reactive(Size(0, 0))
    """Of its lines. Without a layout: nothing around the list moves but a scrollbar, which asks for one."""

    @dataclass
    class Opened(Message):
        """A session, one of its branches, or a message found in it was chosen."""

        session_id: SessionId
        branch: BranchName | None
        turn_id: TurnId | None = None

    @dataclass
    class Selected(Message):
        """The highlight rests on a line while the list has the focus; None: it has gone."""

        session_id: SessionId | None
        branch: BranchName | None = None

    @dataclass
    class Asked(Message):
        """A command is meant for a session, or for one of its branches."""

        command: str
        session_id: SessionId
        branch: BranchName | None = None

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id, markup=False, compact=True)
        self.lines: tuple[SessionLine, ...] = ()
        self._sessions: Sequence[SessionWithBranches] = ()
        self._drawn_as: SessionListOptions | None = None
        self._folded: frozenset[str] = frozenset()
        self._rest: Timer | None = None

    @property
    def chosen(self) -> SessionLine | None:
        return self.lines[self.highlighted] if self.highlighted is not None else None

    def show_sessions(self, sessions: Sequence[SessionWithBranches], options: SessionListOptions) -> None:
        """Draw the sessions; the highlight stays on its line."""
        self._sessions, self._drawn_as = sessions, options
        lines = session_lines(sessions, replace(options, folded=self._folded))
        if lines != self.lines or not lines:
            before, self.lines = self.lines, lines
            self._draw(before)

    def show_active(self) -> None:
        """Highlight what is on screen, with its branches."""
        active = next((line for line in self.lines if line.is_active), None)
        if active is None or self._drawn_as is None:
            return
        self._folded -= {active.session_id}
        self.show_sessions(self._sessions, self._drawn_as)
        self.highlighted = max(at for at, line in enumerate(self.lines) if line.is_active)

    def on_resize(self) -> None:
        self._draw(())

    def action_ask(self, command: str) -> None:
        if self.chosen is not None:
            self.post_message(self.Asked(command, self.chosen.session_id, self.chosen.branch))

    def action_fold(self, is_folded: bool) -> None:
        """Fold the branches of the session under the highlight into its line, or show them again."""
        if self.chosen is None or self._drawn_as is None:
            return
        session_id = self.chosen.session_id
        self._folded = self._folded | {session_id} if is_folded else self._folded - {session_id}
        self.show_sessions(self._sessions, self._drawn_as)
        at = next((at for at, line in enumerate(self.lines) if line.session_id == session_id), None)
        if is_folded:
            self.highlighted = at

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        event.stop()
        line = next((line for line in self.lines if line.key == event.option_id), None)
        if line is not None:  # it may have gone since
            self.post_message(self.Opened(line.session_id, line.branch, line.turn_id))

    def on_option_list_option_highlighted(self) -> None:
        self._rest_later()

    def on_focus(self) -> None:
        if self.highlighted is None and self.option_count:
            self.highlighted = 0  # the keys that are named are meant for a line
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
        if self.chosen is not None and self.has_focus:
            self.post_message(self.Selected(self.chosen.session_id, self.chosen.branch))

    def _draw(self, before: Sequence[SessionLine]) -> None:
        """Draw what is not as it was `before`."""
        if (
            self.lines
            and self.option_count == len(self.lines)
            and _keys(before or self.lines) == _keys(self.lines)
        ):
            for index, line in enumerate(self.lines):
                if not before or before[index] != line:
                    self.replace_option_prompt_at_index(index, self._prompt(line))
            return
        highlighted = self.highlighted_option.id if self.highlighted_option else None
        self.set_options(Option(self._prompt(line), id=line.key) for line in self.lines)
        if self._drawn_as is not None and self._drawn_as.finding.is_in_vain and not self.lines:
            self.add_option(Option(_NOTHING, disabled=True))
        keys = _keys(self.lines)
        if highlighted in keys:
            self.highlighted = keys.index(highlighted)

    def _prompt(self, line: SessionLine) -> Content:
        name, figures = line_text(line, max(8, self.scrollable_content_region.width - 2))
        style = Style(bold=line.is_active, italic=line.turn_id is not None)
        return Content.styled(name, style) + Content.styled(figures, "$note")


def _keys(lines: Sequence[SessionLine]) -> list[str]:
    return [line.key for line in lines]
