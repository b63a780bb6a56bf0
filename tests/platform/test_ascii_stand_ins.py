"""ASCII stand-ins: as wide as what they stand for, and used where the locale says so."""

from pathlib import Path

import pytest
from rich.cells import cell_len

from kvchat.platform.ascii_stand_ins import in_ascii, needs_ascii

pytestmark = pytest.mark.pure

KVCHAT = Path(__file__).parents[2] / "kvchat"


def test_every_character_that_is_drawn_has_a_stand_in_of_its_width() -> None:
    texts = [path.read_text() for part in ("ui", "text", "cli") for path in (KVCHAT / part).rglob("*.py")]
    for character in {one for one in "".join(texts) if not one.isascii()}:
        plain = in_ascii(character)
        assert plain.isascii()
        assert plain != "?"
        assert len(plain) == cell_len(character)
    assert in_ascii("漢e\u0301é") == "??ee"


@pytest.mark.parametrize(
    ("environ", "is_plain"),
    [
        ({}, False),
        ({"LANG": "en_GB.UTF-8"}, False),
        ({"LANG": "C.UTF-8"}, False),
        ({"LANG": "C"}, True),
        ({"LANG": "C", "LC_CTYPE": "C.UTF-8"}, True),
        ({"LANG": "C", "LC_ALL": "en_GB.UTF-8"}, False),
        ({"LANG": "en_GB.UTF-8", "LC_ALL": "POSIX"}, True),
        ({"LANG": "en_GB.UTF-8", "TERM": "dumb"}, True),
    ],
)
def test_the_locale_decides_where_it_is_said(environ: dict[str, str], is_plain: bool) -> None:
    assert needs_ascii(environ) is is_plain
