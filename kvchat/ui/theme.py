"""The interface's own colours: calm, few, legible in every theme, and never the only carrier of a meaning."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from textual.app import App
from textual.color import BLACK, WHITE, Color
from textual.filter import LineFilter
from textual.theme import Theme

from kvchat.ui.terminal.driver import EmojiFilter
from kvchat.ui.terminal.stray_output import size_of_terminal

KVCHAT_THEME = Theme(
    name="kvchat",
    dark=True,
    primary="#7fa8d1",
    secondary="#86b5a4",
    accent="#d3a96a",
    warning="#d3a96a",
    error="#d9828a",
    success="#86b5a4",
    foreground="#cfd5de",
    background="#14171c",
    surface="#1a1e25",
    panel="#20252d",
    boost="#262c36",
    variables={
        "border": "#3b4452",
        "border-blurred": "#2a303a",
        "input-selection-background": "#7fa8d1 35%",
        "scrollbar": "#2a303a",
        "scrollbar-hover": "#3b4452",
        "scrollbar-active": "#4a5566",
        "scrollbar-background": "#14171c",
        "scrollbar-background-hover": "#14171c",
        "scrollbar-background-active": "#14171c",
        "scrollbar-corner-color": "#14171c",
    },
)

_ANSI = {
    "faint": "ansi_default",
    "kv-free": "ansi_default",
    "kv-kept": "ansi_default",
    "border": "ansi_default",
    "border-blurred": "ansi_bright_black",
    **dict.fromkeys(("note", "text-muted"), "transparent"),
    "input-cursor-background": "ansi_default",
    "input-cursor-foreground": "ansi_default",
    "block-cursor-text-style": "bold underline",
    "block-cursor-blurred-foreground": "ansi_default",
    "block-cursor-blurred-background": "ansi_default",
    "block-cursor-blurred-text-style": "underline",
}
"""The terminal's own colours. Its grey is the background itself in some palettes. A note has the colour of
the line it is in, which is another one where that is chosen.
"""
_ANSI_DARK = {"primary": "ansi_cyan", "kv-own": "ansi_green", "kv-shared": "ansi_yellow"}
_ANSI_LIGHT = {
    **dict.fromkeys(("secondary", "kv-own"), "ansi_blue"),
    **dict.fromkeys(("success", "warning", "kv-shared"), "ansi_magenta"),
}

_TEXT, _MAIN_TEXT, _CELLS = 4.5, 6.0, 3.0
"""Least contrasts by WCAG 2: of text, of text beside which a fainter one stands, of what is no text."""
_COLOURED = ("primary", "secondary", "accent", "warning", "error", "success")
_PLAIN = ("background", "surface", "foreground")
_STEPS = 20


class ThemedApp(App[None]):
    """An application with kvchat's colours, each line of which the terminal can draw."""

    CSS_PATH = "kvchat.tcss"

    def __init__(self, **options: Any) -> None:
        with size_of_terminal():
            super().__init__(**options)
        self.register_theme(KVCHAT_THEME)
        self._emoji = EmojiFilter()

    def get_line_filters(self) -> Sequence[LineFilter]:
        return [*super().get_line_filters(), self._emoji]

    def get_css_variables(self) -> dict[str, str]:
        self.theme_variables = legible_variables(super().get_css_variables(), self.current_theme)
        return self.theme_variables


def unknown_theme(name: str) -> str:
    """Return how a person is told that there is no such theme."""
    return f"there is no theme {name!r}; type /theme and a space to choose one"


def legible_variables(variables: Mapping[str, str], theme: Theme) -> dict[str, str]:
    """Return the variables of a theme with kvchat's own, and with texts that all its grounds let be read."""
    if theme.ansi:
        return {**variables, **_ANSI, **(_ANSI_DARK if theme.dark else _ANSI_LIGHT)}
    colours = {name: Color.parse(variables[name]) for name in (*_COLOURED, *_PLAIN)}
    background, primary = colours["background"], colours["primary"]
    cursor, blurred = (background.blend(primary, share, alpha=1.0) for share in (0.16, 0.08))
    # What has the focus is tinted.
    tinted = (colours[name].blend(colours["foreground"], 0.05) for name in ("background", "surface"))
    grounds = [background, *tinted, cursor, blurred]
    end = WHITE if theme.dark else BLACK
    text = _legible(colours["foreground"], end, grounds, _MAIN_TEXT)
    coloured = {name: _legible(colours[name], end, grounds, _TEXT) for name in _COLOURED}
    faint = _legible(text.blend(background, 0.6), text, grounds, _TEXT)
    found = {
        **coloured,
        **{f"text-{name}": colour for name, colour in coloured.items()},
        "foreground": text,
        **dict.fromkeys(("faint", "note", "text-muted", "text-disabled"), faint),
        "kv-own": coloured["success"],
        "kv-shared": coloured["warning"],
        "kv-kept": _legible(primary.blend(background, 0.5), coloured["primary"], grounds, _TEXT),
        "kv-free": _legible(text.blend(background, 0.8), text, [background], _CELLS),
        "block-cursor-foreground": text,
        "block-cursor-background": cursor,
        "block-cursor-blurred-foreground": text,
        "block-cursor-blurred-background": blurred,
    }
    return {**variables, **{name: colour.hex for name, colour in found.items()}}


def _legible(start: Color, end: Color, grounds: Iterable[Color], contrast: float) -> Color:
    """Return the first colour on the way to `end` that has this contrast with all grounds."""
    way = (start.blend(end, step / _STEPS, alpha=1.0) for step in range(_STEPS + 1))
    luminances = [_luminance(ground) for ground in grounds]
    return next((one for one in way if all(_contrast(one, ground) >= contrast for ground in luminances)), end)


def _contrast(colour: Color, luminance: float) -> float:
    dark, light = sorted((_luminance(colour), luminance))
    return (light + 0.05) / (dark + 0.05)


def _luminance(colour: Color) -> float:
    """Return the relative luminance of WCAG 2."""
    red, green, blue = (
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in colour.normalized
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue
