"""Formatting of figures: counts, bytes, durations, rates."""

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
UNKNOWN = "–"
_EIGHTHS = " ▏▎▍▌▋▊▉█"
_GAUGE_WIDTH = 8


def count_text(count: int) -> str:
    """Return an exact count: `1,204`."""
    return f"{count:,}"


def short_count_text(count: int) -> str:
    """Return a count in at most five characters: `980`, `5.1k`, `128k`, `1.2M`."""
    if count < 1000:
        return str(count)
    for limit, divisor, unit in ((999_500, 1000, "k"), (10**12, 10**6, "M")):
        if count < limit:
            scaled = count / divisor
            return f"{scaled:.1f}{unit}" if scaled < 99.95 else f"{scaled:.0f}{unit}"
    return f"{count / 10**9:.0f}G"


def bytes_text(num_bytes: int) -> str:
    """Return a size in at most eight characters: `512 B`, `1.2 MiB`, `412 KiB`."""
    value, unit = _scaled(num_bytes)
    return f"{_short_number(value, unit)} {unit}"


def short_bytes_text(num_bytes: int) -> str:
    """Return a size in at most five characters: `512B`, `1.2M`, `412K`."""
    value, unit = _scaled(num_bytes)
    return f"{_short_number(value, unit)}{unit[0]}"


def tiny_bytes_text(num_bytes: int) -> str:
    """Return a size in at most four characters: `512B`, `1.2M`, `12M`, `412K`."""
    value, unit = _scaled(num_bytes, 999.5)
    return f"{value:.1f}{unit[0]}" if unit != "B" and value < 9.95 else f"{value:.0f}{unit[0]}"


def part_text(num_bytes: int, total_bytes: int) -> str:
    """Return a part and its whole: `1.2 / 64 MiB`; a part below one of the whole's unit has its own."""
    value, unit = _scaled(total_bytes)
    part = num_bytes / 1024 ** _UNITS.index(unit)
    shown = bytes_text(num_bytes) if 0 < part < 0.95 else _short_number(part, unit) if part else "0"
    return f"{shown} / {value:.4g} {unit}" if value < 99.95 else f"{shown} / {value:.0f} {unit}"


def seconds_text(seconds: float) -> str:
    """Return a duration: `0.24 s`, `3.1 s`, `2 min`."""
    if seconds < 1:
        return f"{seconds:.2f} s"
    if seconds < 99.95:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} min"


def age_text(seconds: float) -> str:
    """Return how long ago something was, in at most four characters: `now`, `5m`, `3h`, `12d`, `2y`."""
    if seconds < 60:
        return "now"
    for limit, divisor, unit in ((3600, 60, "m"), (86_400, 3600, "h"), (86_400 * 365, 86_400, "d")):
        if seconds < limit:
            return f"{seconds // divisor:.0f}{unit}"
    return f"{seconds // (86_400 * 365):.0f}y"


def rate_text(tokens_per_s: float | None) -> str:
    """Return a token rate: `38 tok/s`, `3.8 tok/s`."""
    if tokens_per_s is None:
        return f"{UNKNOWN} tok/s"
    return f"{tokens_per_s:,.0f} tok/s" if tokens_per_s >= 9.95 else f"{tokens_per_s:.1f} tok/s"


def guesses_text(num_right: int, num_made: int) -> str:
    """Return how many tokens of an answer were guessed right: `12/30 draft tokens accepted`."""
    return f"{count_text(num_right)}/{plural(num_made, 'draft token')} accepted"


def percent_text(part: int, whole: int) -> str:
    """Return a share as `97 %`; nothing of nothing is unknown, not 0 %."""
    return f"{100 * part / whole:.0f} %" if whole else UNKNOWN


def plural(count: int, noun: str, several: str = "") -> str:
    """Return a count with its noun; `several`: where that is not the noun with an s."""
    return f"{count_text(count)} {noun if count == 1 else several or f'{noun}s'}"


def _scaled(num_bytes: int, limit: float = 1023.5) -> tuple[float, str]:
    """Return a size in the smallest unit in which it is below `limit`."""
    value = float(num_bytes)
    for unit in _UNITS[:-1]:
        if value < limit:
            return value, unit
        value /= 1024
    return value, _UNITS[-1]


def _short_number(value: float, unit: str) -> str:
    return f"{value:.0f}" if unit == "B" or value >= 99.95 else f"{value:.1f}"


def gauge(part: int, whole: int, width: int = _GAUGE_WIDTH) -> str:
    """Return a bar of `width` cells in steps of an eighth of a cell."""
    eighths = min(width * 8, round(part / whole * width * 8)) if whole else 0
    bar = "█" * (eighths // 8) + (_EIGHTHS[eighths % 8] if eighths % 8 else "")
    return f"▕{bar:<{width}}▏"
