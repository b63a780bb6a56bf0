"""Every cache format keeps the promises of all."""

from functools import partial

import pytest

from tests.engine.formats.conformance import (
    LATENT,
    PROMPT,
    RECURRENT,
    WHOLE,
    Promises,
    Row,
    StoringPromises,
    TravellingPromises,
)

pytestmark = pytest.mark.cpu

_PRUNED = partial(Row, kind="llama", cuts=(37, 64, 100, 512), exact=WHOLE)
ROWS = {
    f"{row.text} {row.kind}": row
    for row in (
        Row(kind="qwen3", text="exact", exact=PROMPT),
        Row(kind="gpt2", text="exact", exact=PROMPT),
        Row(kind=LATENT, text="exact", exact=PROMPT),
        Row(kind=RECURRENT, text="exact", exact=PROMPT),
        Row(kind=LATENT, text="fp8"),
        Row(kind="llama", text="k=fp8,v=int4; layers 1=exact"),
        Row(kind="gpt2", text="int2"),
        Row(kind="llama", text="window:32", shared=64, exact=64, num_blocks=18),
        _PRUNED(text="snapkv:48:pyramid", shared=PROMPT - 32, exact=0),
        Row(
            kind="llama",
            text="shadow:64:forced",
            cuts=(37, 64, 100, 512),
            shared=WHOLE,
            exact=WHOLE,
            num_blocks=100,
        ),
    )
}
SLOW_ROWS = {
    f"{row.text} {row.kind}": row
    for row in (
        Row(kind="llama", text="exact", exact=PROMPT),
        Row(kind="gemma3", text="exact", exact=PROMPT),
        Row(kind="llama", text="int8"),
        _PRUNED(text="snapkv:48", shared=PROMPT - 32),
        Row(kind="llama", text="fp8"),
        Row(kind="llama", text="int4"),
        Row(kind="qwen3", text="k=int8,v=int4; layers 3=exact"),
        _PRUNED(text="keydiff:48", shared=WHOLE),
        _PRUNED(text="knorm:48", shared=WHOLE),
        Row(kind="qwen3", text="window:32", shared=64, exact=64, num_blocks=18),
        Row(kind=RECURRENT, text="int8"),
    )
}
STORING_ROWS = {
    f"{row.text} {row.kind}": row
    for row in (
        Row(kind="llama", text="exact"),
        Row(kind="llama", text="fp8", deviation=(1e-3, 0.2)),
        Row(kind="llama", text="int8", deviation=(1e-4, 0.05)),
        Row(kind="llama", text="int4", deviation=(1e-2, 0.6)),
        Row(kind=LATENT, text="fp8", deviation=(1e-3, 0.15)),
    )
}
TRAVELLING_ROWS = {
    f"{row.text} {row.kind}": row
    for row in (
        Row(kind=LATENT, text="exact"),
        Row(kind=LATENT, text="fp8"),
        Row(kind=RECURRENT, text="exact"),
        Row(kind="llama", text="int4; layers 0=exact"),
    )
}


def _row_of(request: pytest.FixtureRequest) -> Row:
    found: Row = request.param
    return found


class TestFormats(Promises):
    row = pytest.fixture(
        params=[
            *(pytest.param(row, id=text) for text, row in ROWS.items()),
            *(pytest.param(row, id=text, marks=pytest.mark.slow) for text, row in SLOW_ROWS.items()),
        ]
    )(staticmethod(_row_of))


class TestStoringFormats(StoringPromises):
    row = pytest.fixture(params=STORING_ROWS.values(), ids=STORING_ROWS)(staticmethod(_row_of))


class TestTravellingFormats(TravellingPromises):
    row = pytest.fixture(params=TRAVELLING_ROWS.values(), ids=TRAVELLING_ROWS)(staticmethod(_row_of))
