"""The conversation: questions and answers from the root to the leaf that is open."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.message import Message
from textual.widget import Widget
from textual.widgets import Static

from kvchat.session.tree import Role, Session, Turn, TurnId
from kvchat.ui.attachments import shown_message
from kvchat.ui.figures import plural
from kvchat.ui.plain_text import clean_text
from kvchat.ui.widgets.answer import AnswerView

MAX_LIVE = 15
"""Answers kept as Markdown widgets; each costs layout time whenever text is added."""

PAGE_TURNS = 40
"""Turns mounted when a conversation is opened, and added by each `show_earlier`."""

FIRST_TURNS = 10
"""Of those the ones that are laid out first: more than most screens show, and what a person waits for."""


class QuestionView(Static):
    """A message of the person."""

    def __init__(self, turn: Turn) -> None:
        super().__init__(Content(shown_message(clean_text(turn.text))), markup=False, classes="question")
        self.turn = turn


class EarlierLine(Static):
    """Stands for the turns above that are not mounted."""

    def __init__(self, num_turns: int) -> None:
        super().__init__(f"▲ {plural(num_turns, 'earlier message')} · pageup shows more", markup=False)


TurnView = QuestionView | AnswerView


class Transcript(VerticalScroll):
    """Turns of one branch; stays at the end unless scrolled away from it.

    Attributes:
        selected: the message that the person has walked to, if any.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "select(-1)", "Message above", show=False),
        Binding("down", "select(1)", "Message below", show=False),
        Binding("enter", "choose", "Actions", show=False),
        Binding("pageup", "screen.page(-1)", "Scroll up, or earlier messages", show=False),
        Binding("pagedown", "screen.page(1)", "Scroll down", show=False),
    ]

    @dataclass
    class Chosen(Message):
        """Something is to be done with a message."""

        turn: Turn

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._hidden: list[Turn] = []
        self._session: Session | None = None
        self._folds_reasoning = True
        self.selected: TurnView | None = None

    def compose(self) -> ComposeResult:
        # As high as the window at least: an anchored scroll would push a short conversation to the bottom.
        with Vertical(id="page"):
            yield Static("", id="welcome", markup=False)

    @property
    def page(self) -> Vertical:
        return self.query_one("#page", Vertical)

    @property
    def views(self) -> list[TurnView]:
        """The mounted turns, oldest first."""
        return [child for child in self.page.children if isinstance(child, QuestionView | AnswerView)]

    @property
    def num_hidden(self) -> int:
        return len(self._hidden)

    @property
    def last_answer(self) -> AnswerView | None:
        answers = [view for view in self.views if isinstance(view, AnswerView)]
        return answers[-1] if answers else None

    def show_welcome(self, text: str) -> None:
        """Set what stands in an empty conversation."""
        self.query_one("#welcome", Static).update(Content(text))

    async def show_turns(self, turns: Sequence[Turn], session: Session | None = None) -> None:
        """Show another branch, from its end.

        Args:
            session: whose it is; None for a new conversation.
        """
        self._session = session
        self._hidden = list(turns[:-FIRST_TURNS])
        views = self._views_of(turns[-FIRST_TURNS:], MAX_LIVE)
        async with self.batch():
            await self.query("QuestionView, AnswerView, EarlierLine").remove()
            await self.page.mount_all([*self._earlier_line(), *views])
        self._show_or_hide_welcome()
        self.anchor()
        if self._hidden:
            self.call_after_refresh(self._fill_first_page, views[0])

    async def _fill_first_page(self, first: Widget) -> None:
        """Mount the rest of the first page above `first`, unless another branch is shown by now."""
        if self.views and self.views[0] is first:
            num_live = sum(isinstance(view, AnswerView) and view.is_live for view in self.views)
            await self._mount_above(PAGE_TURNS - FIRST_TURNS, most_live=MAX_LIVE - num_live)

    async def show_earlier(self) -> None:
        """Mount another page of turns above, and keep what is on screen where it is."""
        if not self._hidden:
            return
        first = self.views[0] if self.views else None
        await self._mount_above(PAGE_TURNS)
        if first is not None:
            self.call_after_refresh(self.scroll_to_widget, first, animate=False, top=True)

    async def _mount_above(self, num_turns: int, most_live: int = 0) -> None:
        page, self._hidden = self._hidden[-num_turns:], self._hidden[:-num_turns]
        first = self.views[0] if self.views else None
        async with self.batch():
            await self.query(EarlierLine).remove()
            await self.page.mount_all([*self._earlier_line(), *self._views_of(page, most_live)], before=first)

    async def add_question(self, turn: Turn) -> None:
        await self.page.mount(QuestionView(turn))
        self._show_or_hide_welcome()
        self.anchor()

    async def begin_answer(self, turn: Turn) -> AnswerView:
        """Add an answer that is about to stream."""
        view = AnswerView(turn, self._session, is_live=True, folds_reasoning=self._folds_reasoning)
        await self.page.mount(view)
        view.begin()
        await self._still_older_answers()
        return view

    async def cut_after(self, turn_id: TurnId | None) -> None:
        """Remove what follows a turn; all turns for None."""
        views = self.views
        ids = [view.turn.id for view in views]
        if turn_id is not None and turn_id not in ids:
            return
        first_removed = ids.index(turn_id) + 1 if turn_id is not None else 0
        for view in views[first_removed:]:
            await view.remove()

    def fold_reasoning(self) -> bool:
        """Fold or unfold all reasoning and return whether it is folded now."""
        self._folds_reasoning = not self._folds_reasoning
        for view in self.query(AnswerView):
            view.fold_reasoning(self._folds_reasoning)
        return self._folds_reasoning

    async def action_select(self, step: int) -> None:
        """Walk to the message above or below; from none to the last."""
        if step < 0 and self.selected is not None and self.selected is self.views[0]:
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

    def on_blur(self) -> None:
        self.unselect()

    def _select(self, view: TurnView | None) -> None:
        if self.selected is not None:
            self.selected.remove_class("-selected")
        self.selected = view
        if view is not None:
            view.add_class("-selected")
            self.scroll_to_widget(view, animate=False)

    async def _still_older_answers(self) -> None:
        live = [view for view in self.query(AnswerView) if view.is_live]
        for view in live[:-MAX_LIVE]:
            await view.make_still()

    def _views_of(self, turns: Sequence[Turn], most_live: int) -> list[Widget]:
        """Return views of turns, the last `most_live` answers of them live."""
        num_answers = sum(turn.role is Role.ASSISTANT for turn in turns)
        views: list[Widget] = []
        for turn in turns:
            views.append(self._view(turn, is_live=num_answers <= most_live))
            num_answers -= turn.role is Role.ASSISTANT
        return views

    def _view(self, turn: Turn, *, is_live: bool) -> TurnView:
        if turn.role is Role.USER:
            return QuestionView(turn)
        return AnswerView(turn, self._session, is_live=is_live, folds_reasoning=self._folds_reasoning)

    def _earlier_line(self) -> list[Widget]:
        return [EarlierLine(len(self._hidden))] if self._hidden else []

    def _show_or_hide_welcome(self) -> None:
        self.query_one("#welcome").display = not self.views
