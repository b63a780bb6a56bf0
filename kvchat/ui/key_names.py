"""Keys of the window as they are bound, and their names as shown on screen, with the person's own."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from textual.binding import Binding
from textual.widget import Widget

WINDOW_KEYS = (
    Binding("f1", "run('help')", "Help", id="help"),
    Binding("f2", "sessions", "Sessions", id="sessions"),
    Binding("f3", "run('cache')", "Cache", id="cache"),
    Binding("f4", "run('cache layers')", "Layers", id="layers", show=False),
    Binding("f5", "run('continue')", "Continue", id="go_on", show=False),
    Binding("f6", "messages", "Messages", id="messages", priority=True),
    Binding("f7", "run('cache blocks')", "Blocks", id="inspect", show=False, priority=True),
    Binding("f8", "run('cache freeze')", "Freeze", id="freeze", show=False),
    Binding("f9", "run('answer')", "Answer", id="answer", show=False),
    Binding("f10", "run('notices')", "Notices", id="notices", show=False),
    Binding("ctrl+f", "run('search')", "Find", id="find", priority=True),
    Binding("ctrl+g", "editor", "Editor", id="editor", show=False),
    Binding("ctrl+r", "run('history')", "History", id="history", show=False),
    Binding("ctrl+n", "run('new')", "New", id="new"),
    Binding("ctrl+t", "reasoning", "Reasoning", id="reasoning", show=False),
    Binding("escape", "stop", "Stop", id="stop", show=False),
    Binding("enter", "app.focus('prompt')", "Send", id="send", show=False),
    Binding("ctrl+j,shift+enter,alt+enter", "app.focus('prompt')", "New line", id="newline", show=False),
)
APP_KEYS = (
    Binding("ctrl+q", "leave", "Quit", id="quit", priority=True),
    Binding("ctrl+p", "command_palette", "Palette", show=False, id="palette", priority=True),
    Binding("ctrl+z", "suspend_process", "Suspend", show=False, id="suspend", priority=True),
    Binding("ctrl+l", "redraw", "Redraw", show=False, id="redraw", priority=True),
    Binding("ctrl+s", "save_screen", "Save screen", show=False, id="screen", priority=True),
)
"""Those of the window and of the application, each with the id by which a person may change it."""
_USUAL = {binding.id: binding.key for binding in (*WINDOW_KEYS, *APP_KEYS)}


def keys_of(own_keys: Mapping[str, str], name: str) -> Sequence[str]:
    """Return the keys that a person has given to what has this id; none: it has its usual ones."""
    return [key.strip() for key in own_keys.get(name, "").split(",") if key.strip()]


def key_name(own_keys: Mapping[str, str], name: str) -> str:
    """Return the first key of what has this id, as it is written on the screen."""
    key = next(iter(keys_of(own_keys, name)), _USUAL[name])
    return "esc" if key == "escape" else key


def name_for(widget: Widget, name: str) -> str:
    """Return the same for the window that a widget is in; its usual name for one that is in no window.

    Textual mounts a widget that was removed in the meantime too: it has no screen, and nobody sees it.
    """
    own_keys: Mapping[str, str] = getattr(widget.screen, "own_keys", {}) if widget.is_attached else {}
    return key_name(own_keys, name)


@dataclass(frozen=True, slots=True)
class Hint:
    """What a key does, as the last line says it.

    Args:
        does: a word; the key alone is shown where it says the same.
        key: as Textual calls it; empty: `does` says all.
        shown: what the key is called on the screen, where that is another name.
    """

    does: str
    key: str = ""
    shown: str = ""

    @property
    def name(self) -> str:
        return self.shown or ("esc" if self.key == "escape" else self.key)

    def __str__(self) -> str:
        return self.does if self.name in ("", self.does) else f"{self.name} {self.does}"


def window_hints(
    own_keys: Mapping[str, str], *, is_busy: bool, is_editing: bool, is_covered: bool
) -> tuple[Hint, ...]:
    """Return the hints at keys of the window that are good to know in the prompt.

    Args:
        is_covered: the cache panel has taken the conversation's place.
    """
    names = {"cache": "back" if is_covered else "cache", "stop": "stop"}
    if not is_busy:
        listed = {"sessions": "sessions", "cache": names["cache"], "help": "help"}
        names = {"stop": "cancel"} if is_editing else listed
    return tuple(
        Hint(does, next(iter(keys_of(own_keys, name)), _USUAL[name])) for name, does in names.items()
    )


def hints_of(widget: Widget) -> tuple[Hint, ...]:
    """Return the hints at a focused widget's own keys that are to be shown, but for those taken from it."""
    active = [one.binding for one in widget.screen.active_bindings.values() if one.node is widget]
    return tuple(Hint(one.description.lower(), one.key, one.key_display or "") for one in active if one.show)


def leave_keys(widget: Widget, own_keys: Mapping[str, str]) -> None:
    """Let a widget have none of the keys that a person has given to something which usually has others."""
    for name in own_keys:
        for key in set(keys_of(own_keys, name)) - set(_USUAL.get(name, "").split(",")):
            widget._bindings.key_to_bindings.pop(key, None)
