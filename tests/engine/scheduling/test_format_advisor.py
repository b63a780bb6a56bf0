"""A conversation that has outgrown an exact cache is told in which formats it would go on."""

from pathlib import Path

import pytest
from transformers import GPTJConfig

from kvchat.engine import Engine
from kvchat.engine.api.events import FinishReason, RequestFinished
from kvchat.engine.scheduling.format_advisor import TRIED
from kvchat.errors import PoolExhausted
from tests.engine.conftest import OpenEngine, TinyModels
from tests.engine.latent_models import model_of
from tests.engine.tiny_models import VOCAB_SIZE, answer, save_model, submit, token_ids

pytestmark = pytest.mark.cpu

BYTES = 16 * 16 * 1024
"""Sixteen exact blocks of the tiny model: 256 tokens."""


@pytest.fixture
def model_dir(tiny: TinyModels) -> Path:
    return tiny("llama", max_position_embeddings=4096)


def refused(engine: Engine, length: int) -> PoolExhausted:
    with pytest.raises(PoolExhausted) as caught:
        submit(engine, token_ids(length), 1)
    return caught.value


def test_what_a_refusal_names_is_where_the_conversation_fits_and_what_it_does_not_is_where_it_does_not(
    model_dir: Path, open_engine: OpenEngine
) -> None:
    """Held to engines that have these formats, at every length around the limits of each."""
    exact = open_engine(model_dir, device_bytes=BYTES, max_batch_tokens=32)
    engines = {
        name: open_engine(model_dir, device_bytes=BYTES, cache_format=name, max_batch_tokens=32)
        for name in TRIED
    }
    seen = set()
    for length in range(256, 2000, 37):
        error = refused(exact, length)
        for name, engine in engines.items():
            if name in error.fits_in:
                engine.cancel(submit(engine, token_ids(length), 1).request_id)
                engine.step()
            else:
                assert refused(engine, length).fits_in == ()
        seen.add(error.fits_in)
        hint = f"or keep it in fewer bits with --cache-format {error.fits_in[0]}" if error.fits_in else ""
        assert str(error).endswith(hint or "--kv-device-bytes")
    assert {TRIED, ()} <= seen
    assert len(seen) > 2, "int2 holds more than int8"


def test_an_answer_that_outgrows_the_pool_says_where_it_would_go_on(
    model_dir: Path, open_engine: OpenEngine
) -> None:
    engine = open_engine(model_dir, device_bytes=BYTES, max_batch_tokens=32)
    handle = submit(engine, token_ids(250), 100)
    (end,) = (event for event in handle if isinstance(event, RequestFinished))
    assert (end.reason, end.fits_in) == (FinishReason.ERROR, TRIED)
    assert "--cache-format int8" in (end.error or "")
    assert answer(engine, token_ids(30), 5).finish_reason is FinishReason.LENGTH
    assert refused(engine, 256).fits_in == TRIED


def test_latents_have_a_form_in_fp8_alone(tmp_path: Path, open_engine: OpenEngine) -> None:
    engine = open_engine(model_of("V3, YaRN", tmp_path), device_bytes=50_000, max_batch_tokens=16)
    length = engine.snapshot().groups[0].total_blocks * engine.info.block_size
    assert refused(engine, length).fits_in == ("fp8",)


def test_a_model_that_attends_by_itself_is_told_of_none(tmp_path: Path, open_engine: OpenEngine) -> None:
    config = GPTJConfig(vocab_size=VOCAB_SIZE, n_embd=64, n_layer=2, n_head=4, n_positions=512, rotary_dim=8)
    engine = open_engine(save_model(config, tmp_path), device_bytes=100_000)
    assert engine.info.route == "cache"
    length = engine.snapshot().groups[0].total_blocks * engine.info.block_size
    assert refused(engine, length).fits_in == ()
