"""Mistral 4: latents, queries scaled by their position, and missing from transformers' causal models."""

from pathlib import Path

import pytest
import torch
import transformers
from transformers.models.mistral4 import Mistral4Config, Mistral4ForCausalLM

from kvchat.engine.forward.model_route import Route
from tests.engine.conftest import OpenEngine
from tests.engine.latent_models import SIZES
from tests.engine.tiny_models import answer, token_ids

pytestmark = pytest.mark.cpu

ROPE = {
    "rope_type": "yarn",
    "rope_theta": 10_000.0,
    "factor": 8.0,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "original_max_position_embeddings": 16,
    "llama_4_scaling_beta": 0.1,
}
"""Queries are scaled anew every 16 tokens."""


@pytest.fixture
def model(tmp_path: Path) -> Mistral4ForCausalLM:
    torch.manual_seed(0)
    model = Mistral4ForCausalLM(Mistral4Config(**SIZES | {"q_lora_rank": 24, "rope_parameters": ROPE}))
    model.save_pretrained(tmp_path / "model")
    return model.eval()


def test_it_is_loaded_and_answers_as_transformers_does(
    model: Mistral4ForCausalLM, tmp_path: Path, open_engine: OpenEngine
) -> None:
    assert Mistral4Config not in transformers.MODEL_FOR_CAUSAL_LM_MAPPING
    engine, prompt = open_engine(tmp_path / "model", max_batch_tokens=25), token_ids(70)
    assert engine.info.route == Route.LATENT
    ids = torch.tensor([prompt])
    with torch.inference_mode():
        out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=12, do_sample=False)
    assert answer(engine, prompt, 12).token_ids == out[0, 70:].tolist()
