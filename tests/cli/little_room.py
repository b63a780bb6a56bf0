"""Conversations that outgrow an exact cache."""

import json
from typing import Any

from tests.cli.command_line import Run

ROOM = ("--kv-device-bytes", "1000KiB")
"""Of 1,344 exact tokens of the tiny model, 2,431 in int8 and 3,135 in int4; `WORDS` are ten."""
WORDS = "remember the sea "


def go_on(ask: Run, *words: str) -> tuple[dict[str, Any], str]:
    """Go on with the session `demo` where there is no room for it exactly; return the answer, and what was
    told of that.
    """
    code, out, told = ask("--json", "-s", "demo", *words)
    assert code == 0, told
    answer: dict[str, Any] = json.loads(out)
    assert answer["exact"] is False
    (notice,) = answer["notices"]
    assert notice in told
    assert answer["usage"]["cached_tokens"] > 64, "what was stored is taken up"
    return answer, notice
