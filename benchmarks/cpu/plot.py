"""Bars of a report as SVG: one group for each measurement, one bar for each engine, the bound as a line."""

import statistics
from html import escape
from typing import Any

BAR, GAP, HEIGHT, LEFT, TOP = 14, 26, 220, 60, 40
COLOURS = ("#2a78b8", "#c8742c", "#4f9a5b", "#8b62a8", "#b5495b")


def svg(report: dict[str, Any]) -> str:
    engines = list(dict.fromkeys(name for row in report["rows"] for name in row["tokens_per_s"]))
    parts: list[str] = []
    x = LEFT
    for row in report["rows"]:
        medians = {name: statistics.median(rates) for name, rates in row["tokens_per_s"].items() if rates}
        top = max([*medians.values(), row["bound"]])
        start = x
        for name, value in medians.items():
            height = HEIGHT * value / top
            parts.append(
                f'<rect x="{x}" y="{TOP + HEIGHT - height:.1f}" width="{BAR - 2}" height="{height:.1f}" '
                f'fill="{_colour(engines.index(name))}"><title>{escape(name)}: {value:.1f}</title></rect>'
            )
            x += BAR
        bound = TOP + HEIGHT - HEIGHT * row["bound"] / top
        parts.append(f'<line x1="{start - 3}" x2="{x + 1}" y1="{bound:.1f}" y2="{bound:.1f}" stroke="#333"/>')
        batch = f" x{row['batch']}" if row["batch"] > 1 else ""
        label = f"{row['shape']} {row['bits']}b {row['what']} {row['context']}{batch}"
        foot = TOP + HEIGHT + 14
        turned = f'x="{start}" y="{foot}" transform="rotate(40 {start} {foot})"'
        parts.append(f"<text {turned}>{escape(label)}</text>")
        x += GAP
    legend = "".join(
        f'<rect x="{LEFT + 120 * i}" y="12" width="10" height="10" fill="{_colour(i)}"/>'
        f'<text x="{LEFT + 120 * i + 14}" y="21">{escape(name)}</text>'
        for i, name in enumerate(engines)
    )
    width, height = x + 80, TOP + HEIGHT + 150
    note = "tokens a second, each group to its own scale; the line is the bound of this machine"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif" '
        f'font-size="11"><rect width="100%" height="100%" fill="white"/>{legend}{"".join(parts)}'
        f'<text x="{LEFT}" y="{height - 5}">{note}</text></svg>\n'
    )


def _colour(number: int) -> str:
    return COLOURS[number % len(COLOURS)]
