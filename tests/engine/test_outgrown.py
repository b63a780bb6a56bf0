"""A conversation that has outgrown the exact cache goes on through a shadow, its blocks in host memory."""

from pathlib import Path

import pytest

from kvchat.engine import Engine
from kvchat.engine.api.snapshot import Tier
from kvchat.engine.api.view import OFFERED_SHADOW, parse_view
from kvchat.engine.formats.shadow.settings import least_prompt
from kvchat.errors import PoolExhausted
from tests.engine.conftest import OpenEngine, TinyModels
from tests.engine.tiny_models import submit, token_ids

pytestmark = pytest.mark.cpu

TOKEN = 2 * 4 * 72 * 2 * 4
"""Bytes of an exact token: two layers of four heads, wide enough for a shadow."""
DEVICE, HOST = 2240 * TOKEN, 2400 * TOKEN
LEAST = least_prompt(parse_view(OFFERED_SHADOW))


@pytest.fixture
def model_dir(tiny: TinyModels) -> Path:
    heads = {"num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 72}
    return tiny("llama", num_hidden_layers=2, max_position_embeddings=8192, **heads)


def fits_in(engine: Engine, length: int) -> tuple[str, ...] | None:
    """Return in which other formats a conversation would fit; None: it fits into this one."""
    try:
        handle = submit(engine, token_ids(length), 1)
    except PoolExhausted as full:
        return full.fits_in
    engine.cancel(handle.request_id)
    engine.step()
    return None


def test_a_shadow_is_named_where_the_conversation_fits_with_one_and_nowhere_else(
    model_dir: Path, open_engine: OpenEngine
) -> None:
    """Held to an engine that has one, at lengths around all limits."""
    memory = {"device_bytes": DEVICE, "host_bytes": HOST, "max_context": 6000}
    exact = open_engine(model_dir, **memory)
    shadowed = open_engine(model_dir, cache_format=OFFERED_SHADOW, **memory)
    seen = set()
    for length in range(2000, 4700, 41):
        found = fits_in(exact, length)
        has_room = fits_in(shadowed, length) is None
        if found is not None:
            assert (OFFERED_SHADOW in found) is has_room, length
            seen.add(has_room)
        else:
            assert has_room
    assert seen == {True, False}


def test_a_refusal_says_what_would_lie_where(model_dir: Path, open_engine: OpenEngine) -> None:
    engine = open_engine(model_dir, device_bytes=DEVICE, host_bytes=HOST, max_context=6000)
    with pytest.raises(PoolExhausted) as caught:
        submit(engine, token_ids(2400), 1)
    assert caught.value.fits_in == ("int8", "fp8", OFFERED_SHADOW, "int4", "int2")
    mib = -(-2401 // 16) * 16 * TOKEN / 2**20
    assert f"look at its {mib:.1f} MiB in host memory through a shadow of at most" in str(caught.value)
    assert str(caught.value).endswith(f"--cache-format {OFFERED_SHADOW}")


def test_no_shadow_is_named_to_what_is_too_short_for_one_or_where_there_is_no_host_memory(
    model_dir: Path, open_engine: OpenEngine
) -> None:
    short = open_engine(model_dir, device_bytes=DEVICE // 2, host_bytes=HOST)
    assert OFFERED_SHADOW not in (fits_in(short, LEAST - 2) or ())
    assert OFFERED_SHADOW in (fits_in(short, LEAST) or ())
    alone = open_engine(model_dir, device_bytes=DEVICE, host_bytes=0)
    assert OFFERED_SHADOW not in (fits_in(alone, 2400) or ())


@pytest.mark.parametrize("device_bytes", [DEVICE, 8 * DEVICE], ids=["lent", "none lent"])
def test_blocks_shadows_and_the_host_tier_together_take_what_was_given(
    model_dir: Path, open_engine: OpenEngine, device_bytes: int
) -> None:
    """No byte is promised twice (trap 12)."""
    engine = open_engine(
        model_dir, cache_format=OFFERED_SHADOW, device_bytes=device_bytes, host_bytes=HOST, max_context=6000
    )
    snapshot, shadows = engine.snapshot(), engine._shadows
    assert shadows is not None
    lent_bytes = max(0, snapshot.tier(Tier.DEVICE).total_bytes - device_bytes)
    assert (lent_bytes > 0) is (device_bytes == DEVICE)
    assert lent_bytes + snapshot.tier(Tier.HOST).total_bytes + shadows.limit_bytes <= HOST
