"""One answer on the screen: reasoning, text, footer."""

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content
from textual.geometry import Size
from textual.layout import DockArrangeResult
from textual.reactive import Reactive
from textual.widget import Widget
from textual.widgets import Static

from kvchat.engine.api.events import LoadEstimate, PrefillProgress
from kvchat.engine.api.snapshot import CacheSnapshot
from kvchat.session.tree import Session, Turn
from kvchat.text.answer_footer import (
    PrefillEta,
    ending_text,
    footer_parts,
    loading_parts,
    progress_parts,
    wrap_parts,
)
from kvchat.text.figures import plural
from kvchat.text.fit_text import clean_text
from kvchat.ui.key_names import name_for


class Column(Vertical):
    """Widgets that are as high as what they show, however high the column is. So each is measured once, where
    Textual does so again whenever the column becomes higher, and once more to know how high it is.
    """

    virtual_size = Reactive(Size(0, 0))
    """Not scrolled: nothing has to be placed again when it becomes another."""

    def arrange(self, size: Size, optimal: bool = False) -> DockArrangeResult:
        return super().arrange(Size(size.width, 0), optimal)


_LEAD = "↳ "


class FooterLine(Static):
    """A line of parts, broken between them."""

    def __init__(self, parts: tuple[str, ...]) -> None:
        super().__init__("", markup=False, classes="footer")
        self._parts = parts
        self._lines: tuple[str, ...] | None = None

    def show_parts(self, parts: tuple[str, ...]) -> None:
        self._parts = parts
        self._draw()

    def on_mount(self) -> None:
        self._draw()

    def on_resize(self) -> None:
        self._draw()

    def _draw(self) -> None:
        lines = wrap_parts(self._parts, max(20, self._width - len(_LEAD)))
        if lines == self._lines:
            return
        self._lines = lines
        if lines:
            self.update(Content(_LEAD + "\n  ".join(lines)))
        self.display = bool(lines)

    @property
    def _width(self) -> int:
        """How wide it is, or will be: its height is not to change once the answer has its place."""
        taken = 0
        for node in self.ancestors_with_self:
            if isinstance(node, Widget):
                # Its size as it was drawn last: to ask for its place would have everything placed anew.
                if node.outer_size.width:
                    return node.outer_size.width - node.styles.gutter.width - taken
                taken += node.styles.gutter.width + node.styles.margin.width
        return 0


class Reasoning(Static):
    """What the model thought: one line while folded."""

    def __init__(self, text: str, *, is_folded: bool) -> None:
        super().__init__("", markup=False, classes="reasoning")
        self._text = text
        self.is_folded = is_folded

    def on_mount(self) -> None:
        self._draw()

    def show_text(self, text: str) -> None:
        self._text = text
        self._draw()

    def fold(self, is_folded: bool) -> None:
        self.is_folded = is_folded
        self._draw()

    def _draw(self) -> None:
        self.display = bool(self._text)
        if not self._text:
            return
        if self.is_folded:
            num_words = plural(len(self._text.split()), "word")
            words = f"▸ thought for {num_words} · {name_for(self, 'reasoning')} shows them"
        else:
            words = f"▾ thought\n{self._text.strip()}"
        self.update(Content(words))


class EndingLine(Static):
    """Why an answer is not complete, and what to do."""

    def __init__(self, turn: Turn) -> None:
        super().__init__("", markup=False, classes="ending")
        self._turn = turn

    def on_mount(self) -> None:
        self.show_turn(self._turn)

    def show_turn(self, turn: Turn | None = None) -> None:
        """Say how an answer ended; without one, the same once the engine has loaded."""
        self._turn = turn or self._turn
        snapshot: CacheSnapshot | None = getattr(self.screen, "snapshot", None) if self.is_attached else None
        limit = None if snapshot is None else snapshot.max_context
        ending = ending_text(self._turn, name_for(self, "go_on"), limit)
        if ending:
            self.update(Content(f"■ {ending}"))
        self.display = bool(ending)


class AnswerView(Column):
    """An answer, complete or streaming.

    It has no widget for what it does not say: to mount one takes longer than to draw its text.

    Attributes:
        turn: the answer as last stored.
    """

    def __init__(self, turn: Turn, session: Session | None = None, *, folds_reasoning: bool = True) -> None:
        super().__init__(classes="answer")
        self.turn = turn
        self._session = session
        self._folds_reasoning = folds_reasoning
        # The first frame needs no Markdown, whose parser and highlighter take a tenth of the time up to it.
        from kvchat.ui.widgets.answer_markdown import StaticText

        self._body = StaticText(clean_text(turn.text))
        # What stands there when it is mounted is not drawn twice, and mostly above what is seen.
        self._reasoning = self._reasoning_of(turn.reasoning) if turn.reasoning else None
        self._footer = FooterLine(footer_parts(turn, session))
        self._ending = EndingLine(turn) if ending_text(turn) else None
        self._thoughts = turn.reasoning
        self._pace = PrefillEta()

    @property
    def is_streaming(self) -> bool:
        return self._body.is_streaming

    def compose(self) -> ComposeResult:
        if self._reasoning is not None:
            yield self._reasoning
        yield self._body
        if self._ending is not None:
            yield self._ending
        yield self._footer

    def begin(self) -> None:
        """Start to take text; what the answer has already stays."""
        self._body.begin()
        self._pace = PrefillEta()
        if self._ending is not None:
            self._ending.display = False
        self._footer.show_parts(("reading",))

    def show_loading(self, estimate: LoadEstimate) -> None:
        if parts := loading_parts(estimate):
            self._footer.show_parts(parts)

    def show_prefill(self, prefill: PrefillProgress) -> None:
        self._footer.show_parts(progress_parts(prefill, self._pace.left_s(prefill)))

    def add_text(self, text: str) -> None:
        """Add model text; control characters are dropped."""
        self._body.write(clean_text(text))

    def add_reasoning(self, text: str) -> None:
        self._thoughts += clean_text(text)
        self._show_reasoning(self._thoughts)

    def fold_reasoning(self, is_folded: bool) -> None:
        self._folds_reasoning = is_folded
        if self._reasoning is not None:
            self._reasoning.fold(is_folded)

    def finish(self, turn: Turn) -> None:
        self.turn = turn
        self._body.finish(clean_text(turn.text))
        self._show_reasoning(clean_text(turn.reasoning))
        self._footer.show_parts(footer_parts(turn, self._session))
        if self._ending is not None:
            self._ending.show_turn(turn)
        elif ending_text(turn):
            self._ending = EndingLine(turn)
            self._mount(self._ending, before=self._footer)

    def give_up(self) -> None:
        """End the stream where no stored answer came; what was shown stays."""
        if self.is_streaming:
            self._body.finish(self._body.source)
        self._footer.show_parts(())

    def _reasoning_of(self, text: str) -> Reasoning:
        return Reasoning(clean_text(text), is_folded=self._folds_reasoning)

    def _show_reasoning(self, text: str) -> None:
        if self._reasoning is not None:
            self._reasoning.show_text(text)
        elif text:
            self._reasoning = self._reasoning_of(text)
            self._mount(self._reasoning, before=self._body)

    def _mount(self, widget: Widget, before: Widget) -> None:
        """Mount a widget, unless the answer has left the window."""
        if self.is_attached:
            self.mount_all([widget], before=before)
