"""Key names as shown on screen, with the person's own bindings."""

from collections.abc import Mapping, Sequence

from textual.widget import Widget

_USUAL = {
    "answer": "f9",
    "cache": "f3",
    "find": "ctrl+f",
    "go_on": "f5",
    "help": "f1",
    "notices": "f10",
    "quit": "ctrl+q",
    "reasoning": "ctrl+t",
    "sessions": "f2",
    "stop": "escape",
}


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


def leave_keys(widget: Widget, own_keys: Mapping[str, str]) -> None:
    """Let a widget have none of the keys that a person has given to something else."""
    for name in own_keys:
        for key in keys_of(own_keys, name):
            widget._bindings.key_to_bindings.pop(key, None)
