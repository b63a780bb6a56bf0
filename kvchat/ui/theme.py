"""The interface's own colours: calm, few, and never the only carrier of a meaning."""

from textual.color import Color, ColorParseError
from textual.theme import Theme

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
        "block-cursor-background": "#2d3644",
        "block-cursor-foreground": "#e6eaf0",
        "block-cursor-text-style": "none",
        "block-cursor-blurred-background": "#232932",
        "block-cursor-blurred-foreground": "#cfd5de",
        "input-selection-background": "#7fa8d1 35%",
        "scrollbar": "#2a303a",
        "scrollbar-hover": "#3b4452",
        "scrollbar-active": "#4a5566",
        "scrollbar-background": "#14171c",
        "scrollbar-background-hover": "#14171c",
        "scrollbar-background-active": "#14171c",
        "scrollbar-corner-color": "#14171c",
        "faint": "#6b7583",
        "kv-own": "#6fb3a2",
        "kv-shared": "#d3a96a",
        "kv-kept": "#5f7391",
        "kv-free": "#39414d",
    },
)


_ANSI = {
    "faint": "ansi_bright_black",
    "kv-own": "ansi_green",
    "kv-shared": "ansi_yellow",
    "kv-kept": "ansi_blue",
    "kv-free": "ansi_bright_black",
}
"""The terminal's own colours."""
_FAINTNESS = 0.45


def own_variables(theme: Theme) -> dict[str, str]:
    """Return what kvchat's colours are in a theme that does not know them."""
    if theme.name.startswith("ansi"):
        return _ANSI
    faint = _faint(theme)
    return {
        "faint": faint,
        "kv-own": theme.success or theme.secondary or theme.primary,
        "kv-shared": theme.warning or theme.accent or theme.primary,
        "kv-kept": theme.primary,
        "kv-free": faint,
    }


def _faint(theme: Theme) -> str:
    """Return a colour between text and background."""
    usual = ("#d0d0d0", "#121212") if theme.dark else ("#202020", "#e8e8e8")
    try:
        front, back = (
            Color.parse(colour or other)
            for colour, other in zip((theme.foreground, theme.background), usual, strict=True)
        )
    except ColorParseError:
        front, back = map(Color.parse, usual)
    return front.blend(back, _FAINTNESS, alpha=1.0).hex
