"""What an empty conversation shows: questions to try, and where things are."""

from collections.abc import Sequence

from textual.content import Content
from textual.style import Style
from textual.widgets import Static

from kvchat.engine.api.engine_phase import EnginePhase
from kvchat.engine.models.locate import STARTER
from kvchat.text.figures import plural
from kvchat.ui.key_names import name_for
from kvchat.ui.widgets.prompt_input import Prompt

_FIRST_LINES = {
    EnginePhase.LOADING: "The model is loading. You can type already.",
    EnginePhase.FAILED: "The engine has stopped. What was said is kept.\n/reload starts it again.",
}
_FOR_STARTER = ("What is a KV cache?", "My name is Ana. What is my name?", "Count from 1 to 10.")
_FOR_OTHERS = (
    "Explain a KV cache in two sentences.",
    "Suggest three names for a boat.",
    "Write a haiku about the sea.",
)
_OTHER_MODELS = (
    "The starter is a small model · /model loads a real one",
    "/model replaces the starter model",
)


def things_to_try(model: str) -> tuple[str, ...]:
    """Return questions that a model can answer; the starter knows little else."""
    return _FOR_STARTER if model == STARTER else _FOR_OTHERS


def welcome_text(
    phase: EnginePhase, last: str, *, model: str | None, panel_key: str | None, size: tuple[int, int]
) -> str:
    """Return what an empty conversation shows, as much of it as `size` holds: columns and lines.

    Args:
        last: the line at the end.
        model: that answers; None while that is not known.
        panel_key: what hides the cache panel; None where it is hidden.
    """
    width, height = size
    first = [_FIRST_LINES.get(phase, "Ask anything, or type / for commands")]
    tries = [f"  {words}" for words in things_to_try(model)] if model else []
    notes = [f"On the right: the cache by tier and layer ({panel_key})"] if panel_key and model else []
    if model == STARTER:
        notes.append(next((words for words in _OTHER_MODELS if len(words) <= width), ""))
    notes = [note for note in (*notes, last) if 0 < len(note) <= width]
    for parts in ([first, tries, notes], [first, tries, notes[:-1]], [first, tries], [first, notes]):
        text = "\n\n".join("\n".join(part) for part in parts if part)
        if text.count("\n") < height:
            return text
    return first[0]


class Welcome(Static):
    """What an empty conversation shows. A click on a question puts it into the prompt."""

    def __init__(self) -> None:
        super().__init__("", markup=False)
        self._shown: tuple[EnginePhase, str | None, int] = (EnginePhase.LOADING, None, 0)
        self._text = ""

    def show(self, phase: EnginePhase, model: str | None, num_stored: int) -> None:
        """Draw it anew if it has changed; see `welcome_text`."""
        self._shown = phase, model, num_stored
        help_key, sessions_key = name_for(self, "help"), name_for(self, "sessions")
        stored = f"{plural(num_stored, 'session')} stored · {sessions_key} lists · " if num_stored else ""
        has_panel = self.screen.query_one("#cache-pane").display
        width, height = self.screen.query_one("#transcript").size
        text = welcome_text(
            phase,
            f"{stored}{help_key} help",
            model=model,
            panel_key=name_for(self, "cache") if has_panel else None,
            size=(width, height - 1),
        )
        if text != self._text:
            self._text = text
            self.update(_with_clicks(text, things_to_try(model) if model else ()))

    def on_resize(self) -> None:
        self.show(*self._shown)

    def action_try(self, words: str) -> None:
        self.screen.query_one("#prompt", Prompt).write(words)


def _with_clicks(text: str, questions: Sequence[str]) -> Content:
    content = Content(text)
    for words in filter(text.count, questions):
        start, click = text.index(words), Style.from_meta({"@click": ("try", (words,))})
        content = content.stylize(click, start, start + len(words))
    return content
