"""How a cache format is written."""

import pytest

from kvchat.engine.api.cache_format import SideFormat, canonical_cache_format, parse_cache_format
from kvchat.errors import ConfigError

pytestmark = pytest.mark.pure


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("exact", "exact"),
        (" int4 ", "int4"),
        ("k=int8,v=int4", "k=int8,v=int4"),
        ("v=int4 , k=int8", "k=int8,v=int4"),
        ("k=int8,v=int8", "int8"),
        ("int4;layers 0 - 1 = exact", "int4; layers 0-1=exact"),
        ("int4; layers 0,3-5=exact; layers 4=k=int8,v=fp8", None),
        ("exact; layers 2=exact", "exact"),
    ],
)
def test_a_format_is_written_in_one_way(text: str, written: str | None) -> None:
    found = canonical_cache_format(text)
    assert written is None or found == written
    assert parse_cache_format(found) == parse_cache_format(text)


def test_the_last_range_that_names_a_layer_counts() -> None:
    form = parse_cache_format("int4; layers 0,3-5=exact; layers 4=k=int8,v=fp8")
    assert [str(form.form_of(layer)) for layer in range(7)] == [
        "exact",
        "int4",
        "int4",
        "exact",
        "k=int8,v=fp8",
        "exact",
        "int4",
    ]
    assert not form.is_exact
    assert parse_cache_format("exact; layers 3=int8").form_of(3) == SideFormat("int8", "int8")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("int3", "'int3' is unknown; use exact, fp8, int8, int4, int2"),
        ("", "'' is unknown"),
        ("k=int8", "keys and values apart are written k=int8,v=int4"),
        ("k=int8,k=int4", "keys and values apart are written"),
        ("k=int8,v=int4,v=int2", "keys and values apart are written"),
        ("k=int8,v=exact", "quantised together, or both exact"),
        ("int4; layer 0=exact", "is no part of a cache format"),
        ("int4; layers 0", "is no part of a cache format"),
        ("int4; layers =exact", "names no layers"),
        ("int4; layers 5-2=exact", "write the smaller number first"),
        ("int4; layers -1=exact", "names no layers"),
        ("int4; layers 1=int5", "'int5' is unknown"),
    ],
)
def test_what_is_no_format_is_refused_with_what_to_write(text: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        parse_cache_format(text)
