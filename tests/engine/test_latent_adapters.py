"""A LoRA on a latent model: absorbed projections follow it, at load and when weights are exchanged."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from kvchat.engine.forward.model_route import Route, choose_route
from kvchat.engine.models.latent import latent_layers
from kvchat.engine.models.load import load_model
from tests.engine.conftest import OpenEngine
from tests.engine.latent_models import model_of
from tests.engine.test_adapters import PROMPT, WITH_PEFT, load, peft_answer, save_adapter
from tests.engine.tiny_models import answer, reference

peft = pytest.importorskip("peft", reason="LoRA adapters are an extra: pip install 'kvchat[lora]'")
pytestmark = WITH_PEFT

LEN = 12
TARGETS = {
    "the up-projection": ["kv_b_proj"],
    "everything": ["kv_a_proj_with_mqa", "kv_b_proj", "q_proj", "o_proj"],
}


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return model_of("V3, YaRN", tmp_path)


@pytest.fixture(params=TARGETS)
def adapter(request: pytest.FixtureRequest, base: Path, tmp_path: Path) -> Path:
    return save_adapter(base, tmp_path / "adapter", target_modules=TARGETS[request.param])


def test_answers_are_those_of_peft_beside_the_weights(
    base: Path, adapter: Path, open_engine: OpenEngine
) -> None:
    wanted = peft_answer(base, adapter, LEN)
    assert wanted != reference(base).answer(PROMPT, LEN)
    engine = open_engine(base, adapter=adapter, max_batch_tokens=25)
    assert engine.info.route == Route.LATENT
    assert answer(engine, PROMPT, LEN).token_ids == wanted


@pytest.mark.parametrize(("cache_format", "targets"), [("exact", "the up-projection"), ("fp8", "everything")])
def test_absorbed_projections_follow_an_exchange_of_weights(
    base: Path, cache_format: str, targets: str, tmp_path: Path, open_engine: OpenEngine
) -> None:
    """Against engines that were loaded with those weights; in the exact format these are peft's answers."""
    adapter = save_adapter(base, tmp_path / "adapter", target_modules=TARGETS[targets])
    engine = open_engine(base, cache_format=cache_format)
    before, plain = engine.info, answer(engine, PROMPT, LEN).token_ids
    with_adapter = open_engine(base, adapter=adapter, cache_format=cache_format)
    wanted = answer(with_adapter, PROMPT, LEN).token_ids
    assert engine.update_weights(adapter).fingerprint == with_adapter.info.fingerprint
    changed = answer(engine, PROMPT, LEN)
    assert (changed.usage.cached_tokens, changed.token_ids) == (0, wanted)
    assert wanted != plain
    assert engine.update_weights(base).fingerprint == before.fingerprint
    again = answer(engine, PROMPT, LEN)
    assert (again.usage.cached_tokens, again.token_ids) == (len(PROMPT) - 1, plain)


def test_an_adapter_that_is_not_merged_is_never_left_out(base: Path, adapter: Path) -> None:
    """The weight alone is not the layer then, so latents are expanded by the layer itself."""
    wrapped: Any = peft.PeftModel.from_pretrained(load(base), adapter).eval()
    module = wrapped.base_model.model
    assert latent_layers(module) == {}
    plain = load_model(base, "float32", torch.device("cpu"))
    assert choose_route(replace(plain, module=module)).route is Route.ATTENTION
