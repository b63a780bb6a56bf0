"""Cache panel rows of a server's cache. Pure."""

from kvchat.engine.api.server_cache import ServerCache
from kvchat.text.cache_usage import request_words, reuse_words, share_words
from kvchat.ui.widgets.cache.row_view import MARKS, Look, Row, figure_row

_LABEL_WIDTH = 9
_VALUE_WIDTH = 8
_MIN_BAR_WIDTH = 4


def served_rows(where: str, served: ServerCache | None, width: int) -> tuple[Row, ...]:
    """Return the rows of the panel where a server answers.

    Args:
        served: None: it reports nothing of its cache.
    """
    head: Row = ((where, Look.FAINT),)
    if served is None:
        return head, (("its cache is unknown", Look.FAINT),)
    return (
        head,
        (),
        _usage_row("device", served.usage, width),
        _usage_row("host", served.host_usage, width),
        (),
        figure_row("reused", reuse_words(served, short=True), width, Look.LABEL),
        figure_row("requests", request_words(served), width, Look.LABEL),
        (),
        (("as its /metrics tell", Look.FAINT),),
    )


def _usage_row(label: str, share: float | None, width: int) -> Row:
    if share is None:
        return figure_row(label, share_words(share), width, Look.LABEL)
    bar_width = max(_MIN_BAR_WIDTH, width - _LABEL_WIDTH - _VALUE_WIDTH)
    used = min(bar_width, max(1, round(share * bar_width))) if share else 0
    return (
        (label.ljust(_LABEL_WIDTH), Look.LABEL),
        (MARKS[Look.OWN] * used, Look.OWN),
        (MARKS[Look.FREE] * (bar_width - used), Look.FREE),
        (share_words(share).rjust(_VALUE_WIDTH), Look.VALUE),
    )
