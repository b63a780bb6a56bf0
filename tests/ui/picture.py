"""What a screenshot shows, as text that can be kept and compared: every letter, where it is, in which colour.

Markup, fonts and the numbers that a screenshot gives its lines are left out: nobody sees them.
"""

import os
import re
from collections import Counter, defaultdict
from html import unescape
from pathlib import Path

from textual.app import App

PICTURES = Path(__file__).parent / "pictures"
REDRAW = "REDRAW_PICTURES"
"""Set, it keeps what is drawn now; look at what has changed before that is committed."""

_CELL = 12.2
_STYLE = re.compile(r"\.[\w-]+-(r\d+) \{ (.*?) \}")
_TEXT = re.compile(
    r'<text class="[\w-]+-(r\d+)" x="([\d.]+)" .*?clip-path="url\(#[\w-]+-line-(\d+)\)">(.*?)</text>'
)
_GROUND = re.compile(r'<rect fill="(#\w+)" x="([\d.]+)" y="([\d.]+)" width="([\d.]+)"')
_LINE = 24.4


def drawn(svg: str) -> str:
    """Return the lines of a screenshot, and below them the colours of their runs by line and column, with
    grounds that are not the usual one.
    """
    styles = {name: style.replace("fill: ", "").replace(";", " ") for name, style in _STYLE.findall(svg)}
    lines: dict[int, str] = defaultdict(str)
    colours: dict[int, list[str]] = defaultdict(list)
    for name, x, line, text in _TEXT.findall(svg):
        column = round(float(x) / _CELL)
        shown = unescape(text).replace("\xa0", " ")
        lines[int(line)] = lines[int(line)].ljust(column) + shown
        if shown.strip():
            colours[int(line)].append(f"{column} {styles[name]}")
    grounds = [found for found in _GROUND.findall(svg) if float(found[3]) > _CELL / 2]
    common = Counter(ground for ground, *_ in grounds).most_common(1)
    for ground, x, y, width in grounds:
        if ground != common[0][0]:
            place = f"{round(float(x) / _CELL)}+{round(float(width) / _CELL)} on {ground}"
            colours[round((float(y) - 1.5) / _LINE)].append(place)
    text = "\n".join(lines[number].rstrip() for number in range(max(lines, default=-1) + 1))
    table = "\n".join(f"{number}: {', '.join(colours[number])}" for number in sorted(colours))
    return f"{text}\n\n{table}\n"


def check_picture(app: App[None], name: str) -> None:
    """Compare what an app shows with the picture of this name."""
    shown, file = drawn(app.export_screenshot()), PICTURES / f"{name}.txt"
    if os.environ.get(REDRAW):
        file.write_text(shown, encoding="utf-8")
    assert shown == file.read_text(encoding="utf-8"), f"{REDRAW}=1 keeps it:\n{shown}"
