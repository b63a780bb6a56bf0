"""Wording of gauge results: tables for a terminal, and for a page of the documentation."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from math import isfinite

from kvchat.engine.api.cache_format import EXACT
from kvchat.engine.api.loss import FormatLoss, GaugeReport, Loss
from kvchat.engine.api.recall import FormatMarks, Item
from kvchat.engine.quality.frontier import recommended, share_bounds
from kvchat.engine.quality.paired_score import paired_score
from kvchat.text.figures import bytes_text, plural

_HEAD = ("format", "bytes", "of exact", "top-1 match", "recall", "KL, nats", "perplexity")


def report_lines(report: GaugeReport, kept_agreement: float) -> Iterator[str]:
    """Yield what was measured on one conversation, and which format that recommends."""
    how = " as converted" if any(one.is_converted for one in report.formats) else ""
    yield (
        f"{plural(report.num_tokens, 'token')}, {bytes_text(report.exact_bytes)} exact; the last"
        f" {report.num_replayed} of its answers replayed{how}"
    )
    yield from table([_HEAD, *(_row(one, report) for one in report.formats)])
    if report.layers:
        most = sorted(report.layers, key=lambda one: -one.loss.divergence)
        yield f"one layer alone in {report.layers[0].cache_format}, the most sensitive first:"
        yield from table(
            [
                ("layer", "top-1 match", "divergence"),
                *((str(one.layer), _percent(one.loss.agreement), _nats(one.loss)) for one in most),
            ]
        )
    yield advice_line(report, kept_agreement)


def advice_line(report: GaugeReport, kept_agreement: float) -> str:
    """Say which format to take."""
    best = recommended(report.formats, kept_agreement, report.exact_bytes)
    wanted = f"{100 * kept_agreement:g} %"
    if report.formats and all(one.num_bytes >= report.exact_bytes for one in report.formats):
        return "no format saves bytes here yet: the conversation is too short; stay with exact"
    if best is None:
        return f"no format here keeps {wanted} of the tokens: stay with exact"
    least, _ = share_bounds(best.loss.agreement, best.loss.num_tokens)
    saved = 1 - best.num_bytes / report.exact_bytes
    return (
        f"to keep {wanted}: --cache-format {_quoted(best.cache_format)} saves {100 * saved:.0f} % of the"
        f" bytes; {best.loss.num_tokens} tokens say at least {100 * least:.1f} %"
    )


def figures_of(report: GaugeReport, session_id: str, kept_agreement: float) -> object:
    """Return a report with what it recommends, as JSON has it."""
    best = recommended(report.formats, kept_agreement, report.exact_bytes)
    advice = {"keep": kept_agreement, "recommended": best.cache_format if best else EXACT}
    return finite({"session": session_id} | asdict(report) | advice)


def suite_lines(items: Sequence[Item], marks: Sequence[FormatMarks]) -> Iterator[str]:
    """Yield the table of the built-in suite, as Markdown; the exact format comes first in `marks`."""
    kinds = tuple(dict.fromkeys(item.kind for item in items))
    exact = marks[0]
    yield (
        "| format | bytes per token | "
        + " | ".join(f"{kind}, exact → format" for kind in kinds)
        + " | points lost, 95 % interval | top-1 match | divergence | perplexity |"
    )
    yield "|" + " --- |" * (6 + len(kinds))
    for one in marks[1:]:
        parts = [paired_score(items, exact, one, kind) for kind in kinds]
        whole = paired_score(items, exact, one)
        shares = " | ".join(f"{100 * part.exact:.1f} → {100 * part.approximate:.1f} %" for part in parts)
        loss = one.answers
        points = f"{whole.lost:+.1f} ({whole.least_lost:+.1f} … {whole.most_lost:+.1f})"
        yield (
            f"| `{one.cache_format}` | {one.token_bytes:.0f} | {shares} | {points} |"
            f" {_percent(loss.agreement)} | {_nats(loss)} | × {loss.perplexity_ratio:.4f} |"
        )


def suite_values(items: Sequence[Item], marks: Sequence[FormatMarks]) -> list[dict[str, object]]:
    """Return the same as JSON has it."""
    kinds = tuple(dict.fromkeys(item.kind for item in items))
    return [
        {
            "cache_format": one.cache_format,
            "token_bytes": one.token_bytes,
            "all": asdict(paired_score(items, marks[0], one)),
            **{kind: asdict(paired_score(items, marks[0], one, kind)) for kind in kinds},
            "answers": asdict(one.answers),
            "texts": asdict(one.texts),
        }
        for one in marks
    ]


def finite(value: object) -> object:
    """Return a value of JSON with None in place of numbers that JSON lacks."""
    if isinstance(value, dict):
        return {name: finite(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [finite(part) for part in value]
    return None if isinstance(value, float) and not isfinite(value) else value


def table(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield rows as lines of columns that are as wide as they must be; the first is aligned to the left."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [
            cell.ljust(width) if number == 0 else cell.rjust(width)
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        yield "  " + "  ".join(cells)


def _row(one: FormatLoss, report: GaugeReport) -> tuple[str, ...]:
    return (
        one.cache_format,
        bytes_text(one.num_bytes),
        f"{100 * one.num_bytes / report.exact_bytes:.0f} %",
        _percent(one.loss.agreement),
        "–" if one.loss.recall is None else _percent(one.loss.recall),
        _nats(one.loss),
        f"× {one.loss.perplexity_ratio:.4f}",
    )


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _nats(loss: Loss) -> str:
    return f"{loss.divergence:.2g}"


def _quoted(cache_format: str) -> str:
    return f'"{cache_format}"' if any(one in cache_format for one in " ;,=") else cache_format
