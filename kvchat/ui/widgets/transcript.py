"""The conversation: questions and answers from the root to the leaf that is open."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import thread_time
from typing import ClassVar, Final, Self

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.geometry import Region, Size
from textual.layout import DockArrangeResult
from textual.message import Message
from textual.reactive import Reactive
from textual.scrollbar import ScrollBar
from textual.widget import Widget
from textual.widgets import Static

from kvchat.session.tree import Role, Session, Turn, TurnId
from kvchat.text.attached_files import shown_message
from kvchat.text.figures import plural
from kvchat.text.fit_text import clean_text
from kvchat.ui.widgets.answer import AnswerView, Column, EndingLine
from kvchat.ui.widgets.welcome import Welcome

BUDGET_S: Final = 0.02
"""Of the interface's thread, for one portion with the layout that follows it."""
_LEAST = 2
"""What a portion costs whatever is in it is not to be paid for every single one."""
_FIRST = 4
_MOST = 20


class WorkSlice:
    """Says how many equal things to do at a time, from what the last of them took.

    Attributes:
        num: how many next, two at least.
    """

    def __init__(self, spent: Callable[[], float] = thread_time) -> None:
        self.num = _FIRST
        self._spent = spent
        self._began_s: float | None = None
        self._done = 0

    def begin(self, num: int) -> None:
        """Note that so many are done now."""
        self._began_s, self._done = self._spent(), num

    def end(self) -> None:
        """Note that they are done, with all that follows from them; does nothing without a beginning."""
        if self._began_s is None or not self._done:
            return
        took_s = max(self._spent() - self._began_s, 1e-6)
        self._began_s = None
        # At most twice as many as before: the next ones may be longer.
        self.num = max(_LEAST, min(_MOST, 2 * self._done, round(self._done * BUDGET_S / took_s)))


PAGE_TURNS = 40
"""Turns mounted when a conversation is opened."""

FIRST_TURNS = 10
"""Of those the ones that are laid out first: more than most screens show, and what a person waits for."""

_REST_S = 0.2
"""So long after others have come on screen turns are removed, a few at a time."""

_AHEAD_PAGES = 2
"""Earlier turns come when there is less than this above what is on screen."""


class QuestionView(Static):
    """A message of the person."""

    def __init__(self, turn: Turn) -> None:
        super().__init__(Content(shown_message(clean_text(turn.text))), markup=False, classes="question")
        self.turn = turn
        self.border_title = "editing"


class EarlierLine(Static):
    """Stands for the turns above that are not mounted."""

    def show(self, num_turns: int) -> None:
        self.update(f"▲ {plural(num_turns, 'earlier message')} · pageup shows more", layout=False)
        self.display = num_turns > 0


TurnView = QuestionView | AnswerView


class TranscriptPage(Column):
    """All turns. It shows nothing itself: what comes into it, or goes, has nothing else drawn again."""

    def refresh(
        self, *regions: Region, repaint: bool = True, layout: bool = False, recompose: bool = False
    ) -> Self:
        return super().refresh(*regions, repaint=repaint and not layout, layout=layout, recompose=recompose)


class EarlierTurns(Column):
    """Turns that were mounted together, and have their places together."""


class Transcript(VerticalScroll):
    """Turns of one branch; stays at the end unless scrolled away from it.

    Attributes:
        selected: the message that the person has walked to, if any.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "select(-1)", "Walk", key_display="↑↓"),
        Binding("down", "select(1)", "Walk down", show=False),
        Binding("enter", "choose", "Actions"),
        Binding("escape", "screen.stop", "Back", id="stop"),
        Binding("pageup", "screen.page(-1)", "Scroll up, or earlier messages", show=False),
        Binding("pagedown", "screen.page(1)", "Scroll down", show=False),
    ]

    virtual_size = Reactive(Size(0, 0))
    """Its width does not depend on its height: nothing has to be placed again when it grows, but for the
    scroll bar that comes, which sees to that itself.
    """

    @dataclass
    class Chosen(Message):
        """Something is to be done with a message."""

        turn: Turn

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._hidden: list[Turn] = []
        self._session: Session | None = None
        self._folds_reasoning = True
        self._from_end: float | None = None
        self._num_coming = 0
        self._portion = WorkSlice()
        self._edited: TurnId | None = None
        self._leaving: set[Widget] = set()
        self._shown = object()
        """Another one for each branch that is shown."""
        self.selected: TurnView | None = None

    def compose(self) -> ComposeResult:
        # As high as the window at least: an anchored scroll would push a short conversation to the bottom.
        with TranscriptPage(id="page"):
            yield Welcome()
            yield EarlierLine("", markup=False)

    @property
    def page(self) -> TranscriptPage:
        return self.query_one("#page", TranscriptPage)

    @property
    def views(self) -> list[TurnView]:
        """The mounted turns, oldest first, without those that are about to go."""
        parts = (part.children if isinstance(part, EarlierTurns) else (part,) for part in self._parts)
        return [view for views in parts for view in views if isinstance(view, QuestionView | AnswerView)]

    @property
    def _parts(self) -> list[Widget]:
        """What of the page holds turns, and is not about to go."""
        kinds = QuestionView | AnswerView | EarlierTurns
        return [part for part in self.page.children if isinstance(part, kinds) and part not in self._leaving]

    @property
    def num_hidden(self) -> int:
        return len(self._hidden)

    @property
    def last_answer(self) -> AnswerView | None:
        return next((view for view in reversed(self.views) if isinstance(view, AnswerView)), None)

    async def show_turns(self, turns: Sequence[Turn], session: Session | None = None) -> None:
        """Show another branch, from its end.

        Args:
            session: whose it is; None for a new conversation.
        """
        async with self.batch():
            self.unselect()
            self._shown = shown = object()
            self._session, self._from_end, self._num_coming = session, None, 0
            self._hidden = list(turns[:-FIRST_TURNS])
            views = [self._view(turn) for turn in turns[-FIRST_TURNS:]]
            self._hide(self._parts)
            await self.page.mount_all(views)
            self.query_one(EarlierLine).show(len(self._hidden))
            self._show_or_hide_welcome()
        self.anchor()
        if self._hidden:
            self.call_after_refresh(self._fill_first_page, shown)

    def _hide(self, parts: Sequence[Widget]) -> None:
        """Take turns off the screen at once; to remove them takes as long as to mount others."""
        for part in parts:
            part.display = False
        if parts and not self._leaving:
            self.set_timer(_REST_S, self._remove_hidden)
        self._leaving.update(parts)

    async def _remove_hidden(self) -> None:
        leaving = list(self._leaving)[:FIRST_TURNS]
        await self.page.remove_children(leaving)
        self._leaving.difference_update(leaving)
        if self._leaving:
            self.set_timer(_REST_S, self._remove_hidden)

    async def _fill_first_page(self, shown: object) -> None:
        """Mount the rest of the first page, unless another branch is shown by now."""
        most_turns = PAGE_TURNS - len(self.views)
        if most_turns > 0 and await self._mount_above(shown, most_turns):
            self.call_after_refresh(self._fill_first_page, shown)

    async def page_up(self) -> None:
        """Scroll up by a page; where there is less than that above, earlier turns are mounted first."""
        if self._hidden and self.views and self.scroll_y < self.scrollable_content_region.height:
            await self.show_earlier()
            self.call_after_refresh(self.page_up)
        else:
            self.scroll_page_up(on_complete=self._mount_ahead)

    async def show_earlier(self) -> bool:
        """Mount a few turns above, and keep what is on screen where it is; return whether there were any."""
        return await self._mount_above(self._shown)

    async def _mount_ahead(self) -> None:
        """Mount turns before they are needed, a few between two frames, while nothing scrolls."""
        is_enough = self.scroll_y >= _AHEAD_PAGES * self.scrollable_content_region.height
        if is_enough or self.app.animator.is_being_animated(self, "scroll_y"):
            return
        if await self.show_earlier():
            self.call_after_refresh(self._mount_ahead)

    async def _mount_above(self, shown: object, most_turns: int = PAGE_TURNS) -> bool:
        """Mount a portion of turns above; return whether the same branch is shown still, and any came."""
        async with self.batch():
            if not self._hidden or not self.views or self._shown is not shown:
                return False
            num_turns = min(self._portion.num, most_turns, len(self._hidden))
            self._portion.begin(num_turns)
            page, self._hidden = self._hidden[-num_turns:], self._hidden[:-num_turns]
            self.app.animator.force_stop_animation(self, "scroll_y")
            self._num_coming += 1
            if self._from_end is None:  # else it still holds what was on screen before the portion above
                self._from_end = self.virtual_size.height - self.scroll_y
            await self.page.mount_all([EarlierTurns(*map(self._view, page))], before=self._parts[0])
            self.query_one(EarlierLine).show(len(self._hidden))
        self.call_after_refresh(self._let_go)
        return True

    def arrange(self, size: Size, optimal: bool = False) -> DockArrangeResult:
        """Place what it shows; while turns are mounted above, what is on screen stays where it is."""
        placed = super().arrange(size, optimal)
        if self._from_end is not None:
            y = max(0.0, placed.total_region.bottom - self._from_end)
            self.set_reactive(Widget.scroll_y, y)
            self.set_reactive(Widget.scroll_target_y, y)
            # Without a redraw, which comes anyway: it would have everything placed once more.
            self.vertical_scrollbar.set_reactive(ScrollBar.position, y)
        return placed

    def _let_go(self) -> None:
        """Scroll freely again, unless more is on its way."""
        self._portion.end()
        self._num_coming = max(0, self._num_coming - 1)
        if not self._num_coming:
            self._from_end = None

    async def begin_turn(self, question: Turn | None, answer: Turn) -> AnswerView:
        """Add a question, if there is one, and an answer that is about to stream: both with one layout."""
        view = AnswerView(answer, self._session, folds_reasoning=self._folds_reasoning)
        async with self.batch():
            # Which, unlike `mount`, does nothing in a window that closes.
            await self.page.mount_all([view] if question is None else [QuestionView(question), view])
            view.begin()
            self._show_or_hide_welcome()
        if question is not None:
            self.anchor()
        return view

    async def cut_after(self, turn_id: TurnId | None) -> None:
        """Remove what follows a turn; all turns for None."""
        async with self.lock:
            views = self.views
            path = [*self._hidden, *(view.turn for view in views)]
            ids = [turn.id for turn in path]
            if turn_id is not None and turn_id not in ids:
                return
            end = ids.index(turn_id) + 1 if turn_id is not None else 0
            if end <= len(self._hidden) and path:
                await self.show_turns(path[:end], self._session)
                return
            for view in views[end - len(self._hidden) :]:
                if view is self.selected:
                    self.unselect()
                await view.remove()

    def fold_reasoning(self) -> None:
        self._folds_reasoning = not self._folds_reasoning
        for view in self.query(AnswerView):
            view.fold_reasoning(self._folds_reasoning)

    def show_endings(self) -> None:
        """Say how answers ended once more: that a context is full is known once the engine has loaded."""
        for line in self.query(EndingLine):
            line.show_turn()

    async def action_select(self, step: int) -> None:
        """Walk to the message above or below; from none to the last."""
        if step < 0 and self.selected is not None and self.views[:1] == [self.selected]:
            await self.show_earlier()
        views = [view for view in self.views if not (isinstance(view, AnswerView) and view.is_streaming)]
        if not views:
            return
        at = views.index(self.selected) + step if self.selected in views else len(views) - 1
        self._select(views[max(0, min(at, len(views) - 1))])

    def action_choose(self) -> None:
        if self.selected is not None:
            self.post_message(self.Chosen(self.selected.turn))

    def unselect(self) -> None:
        self._select(None)

    def mark_edited(self, turn_id: TurnId | None) -> None:
        """Mark the message that is being changed in the prompt, and show it; None: there is none."""
        if turn_id == self._edited:
            return
        self._edited = turn_id
        for view in self.views:
            view.set_class(view.turn.id == turn_id, "-edited")
            if view.turn.id == turn_id:
                self.call_after_refresh(self.scroll_to_widget, view, animate=False)

    def on_blur(self) -> None:
        self.unselect()

    def _select(self, view: TurnView | None) -> None:
        if self.selected is not None:
            self.selected.remove_class("-selected")
        self.selected = view
        if view is not None:
            view.add_class("-selected")
            self.call_after_refresh(self.scroll_to_widget, view, animate=False)  # it may be new

    def _view(self, turn: Turn) -> TurnView:
        if turn.role is Role.USER:
            question = QuestionView(turn)
            question.set_class(turn.id == self._edited, "-edited")
            return question
        return AnswerView(turn, self._session, folds_reasoning=self._folds_reasoning)

    def _show_or_hide_welcome(self) -> None:
        self.query_one(Welcome).display = not self.views
