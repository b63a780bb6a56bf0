"""ASCII stand-ins for the characters of the interface, each as wide as what it stands for."""

import codecs
import locale
import re
from collections.abc import Mapping
from functools import lru_cache
from unicodedata import combining, east_asian_width, normalize

_PLAIN = ("C", "POSIX")
_COERCED = ("C.UTF-8", "C.utf8", "UTF-8")
"""What Python sets LC_CTYPE to where the locale is plain, whatever the terminal shows."""
_OTHERS = re.compile("[^\x00-\x7f]")
_STAND_INS = {
    **dict.fromkeys("─▁▔━–—", "-"),
    **dict.fromkeys("│┊┃▏▎▍▕▐", "|"),
    **dict.fromkeys("└├┤┴┬┼╭╮╰╯┌┐┘", "+"),
    **dict.fromkeys("▂▃░◌", ":"),
    **dict.fromkeys("▄▅▒≈▤", "="),
    **dict.fromkeys("▆▇█▉▊▋▌▓■●", "#"),
    **dict.fromkeys("○◐◯", "o"),
    **dict.fromkeys("›→▸▶↳", ">"),
    **dict.fromkeys("↓▼▾✓", "v"),
    **dict.fromkeys("↑▲", "^"),
    **dict.fromkeys("×✗", "x"),
    **dict.fromkeys("★◆•⇅", "*"),
    **dict.fromkeys("“”", '"'),
    **dict.fromkeys("‘’", "'"),
    **dict.fromkeys("·…", "."),
    **dict.fromkeys("←⏎≤", "<"),
}


def needs_ascii(environ: Mapping[str, str]) -> bool:
    """Return whether the terminal is said to show nothing but ASCII: it is dumb, or its locale is not UTF-8.

    A locale that is not said at all tells nothing, and most terminals show UTF-8.
    """
    ctype, lang = environ.get("LC_CTYPE", ""), environ.get("LANG", "")
    name = environ.get("LC_ALL") or (lang if ctype in _COERCED and lang in _PLAIN else ctype or lang)
    is_other = codecs.lookup(locale.getpreferredencoding(False)).name != "utf-8"
    return environ.get("TERM") == "dumb" or name in _PLAIN or (bool(name) and is_other)


def in_ascii(text: str) -> str:
    """Return a text with a stand-in for each character that ASCII lacks."""
    return text if text.isascii() else _OTHERS.sub(lambda found: stand_in(found.group()), text)


@lru_cache(maxsize=4096)
def stand_in(character: str) -> str:
    """Return what stands for a character, in as many cells."""
    num_cells = 0 if combining(character) else 1 + (east_asian_width(character) in "WF")
    simple = normalize("NFKD", character).encode("ascii", "ignore").decode()
    return _STAND_INS.get(character) or (simple if len(simple) == num_cells else "?" * num_cells)
