"""What the cache panel and the status line say of a server's cache, read as text."""

import pytest

from kvchat.engine.api.server_cache import ServerCache
from kvchat.ui.widgets.cache.panel import served_rows
from kvchat.ui.widgets.cache.row_view import row_text

pytestmark = pytest.mark.pure

TOLD = ServerCache(
    usage=0.42, hit_rate=0.354, hit_tokens=1204, asked_tokens=3400, num_running=2, num_waiting=0
)


def lines(served: ServerCache | None, width: int = 36) -> list[str]:
    return [row_text(row) for row in served_rows("m at 127.0.0.1", served, width)]


def test_what_is_reported_has_a_bar_and_what_is_not_is_unknown() -> None:
    assert lines(TOLD) == [
        "m at 127.0.0.1",
        "",
        "device   ▓▓▓▓▓▓▓▓···········    42 %",
        "host                         unknown",
        "",
        "reused           1.2k of 3.4k · 35 %",
        "requests        2 running, 0 waiting",
        "",
        "as its /metrics tell",
    ]
    assert lines(None) == ["m at 127.0.0.1", "its cache is unknown"]
    asked_nothing = ServerCache(usage=0.0, hit_tokens=0, asked_tokens=0)
    assert lines(asked_nothing)[5].endswith(" 0 of 0")


@pytest.mark.parametrize("usage", [0.0, 0.0001, 0.5, 1.0])
@pytest.mark.parametrize("width", [30, 36, 61])
def test_no_row_is_wider_than_the_panel(usage: float, width: int) -> None:
    told = lines(
        ServerCache(usage=usage, host_usage=usage, hit_rate=1.0, hit_tokens=10**9, asked_tokens=10**9), width
    )
    assert max(map(len, told)) <= width
    assert ("▓" in told[2]) == (usage > 0)
