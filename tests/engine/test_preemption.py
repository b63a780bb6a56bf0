"""More work than the device holds: what is put back comes back, and no answer changes."""

from pathlib import Path

import pytest

from kvchat.engine.api.sampling_params import SamplingParams
from kvchat.engine.api.snapshot import Tier
from kvchat.engine.engine import Engine
from tests.engine.tiny_models import make_config, open_engine, save_model, token_ids

pytestmark = pytest.mark.cpu


@pytest.fixture(scope="module", params=["llama", "qwen3"])
def model_dir(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(make_config(request.param), tmp_path_factory.mktemp(request.param))


def small_engine(model_dir: Path, num_tokens: int, host_tokens: int) -> Engine:
    """Return an engine whose pools hold about `num_tokens` tokens, and its host tier `host_tokens`."""
    token_bytes = 4 * 2 * 2 * 16 * 4  # layers, keys and values, heads, head size, float32
    return open_engine(
        model_dir,
        device_bytes=num_tokens * token_bytes,
        host_bytes=host_tokens * token_bytes,
        max_batch_tokens=32,
    )


def test_what_was_put_back_comes_back_from_host_memory_and_not_by_computing(model_dir: Path) -> None:
    prompts = [token_ids(100, seed=seed) for seed in (1, 2, 3)]
    engine = small_engine(model_dir, 200, 2000)
    first = engine.generate([prompts[0]], SamplingParams(max_tokens=8))[0]
    for prompt in prompts[1:]:
        engine.generate([prompt], SamplingParams(max_tokens=8))
    again = engine.generate([prompts[0]], SamplingParams(max_tokens=8))[0]
    assert again.token_ids == first.token_ids
    assert again.usage.computed_tokens == 1
    assert again.loaded.host > 0
    assert again.loaded.total == again.usage.cached_tokens == 99
    host = engine.snapshot().tier(Tier.HOST)
    assert host.cached_bytes > 0
    assert host.total_bytes is not None
    assert host.cached_bytes <= host.total_bytes <= 2000 * 4 * 2 * 2 * 16 * 4


def test_without_a_host_tier_it_is_computed_again(model_dir: Path) -> None:
    prompts = [token_ids(100, seed=seed) for seed in (1, 2, 3)]
    engine = small_engine(model_dir, 200, 0)
    for prompt in prompts:
        engine.generate([prompt], SamplingParams(max_tokens=8))
    again = engine.generate([prompts[0]], SamplingParams(max_tokens=8))[0]
    assert again.usage.computed_tokens > 50
    assert again.loaded.host == 0
