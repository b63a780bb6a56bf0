"""Penalties and reported log-probabilities, against transformers and the definition."""

from pathlib import Path

import pytest
import torch
import transformers

from kvchat.engine.api.events import TokenEmitted
from kvchat.engine.api.request import Request
from kvchat.engine.api.sampling_params import SamplingParams
from tests.engine.tiny_models import open_engine, reference, token_ids

pytestmark = pytest.mark.cpu


def test_a_repetition_penalty_gives_the_tokens_transformers_gives(model_dir: Path) -> None:
    prompt = token_ids(20)
    peer = transformers.AutoModelForCausalLM.from_pretrained(model_dir, attn_implementation="eager").eval()
    ids = torch.tensor([prompt])
    expected = peer.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=40, do_sample=False, repetition_penalty=1.7
    )
    engine = open_engine(model_dir)
    (plain,) = engine.generate([prompt], SamplingParams(max_tokens=40))
    (penalized,) = engine.generate([prompt], SamplingParams(max_tokens=40, repetition_penalty=1.7))
    assert penalized.token_ids == expected[0, 20:].tolist()
    assert penalized.token_ids != plain.token_ids


def test_reported_log_probabilities_are_those_of_the_model(model_dir: Path) -> None:
    prompt = token_ids(20)
    engine = open_engine(model_dir)
    sampling = SamplingParams(max_tokens=6, logprobs=3, temperature=0.7, seed=1)
    handle = engine.submit(Request(token_ids=tuple(prompt), sampling=sampling))
    emitted = [event for event in handle if isinstance(event, TokenEmitted)]
    whole = prompt + [event.token_id for event in emitted]
    expected = reference(model_dir).logits(whole).log_softmax(dim=-1)
    for position, event in enumerate(emitted, start=len(prompt) - 1):
        assert event.logprobs is not None
        assert event.logprobs.logprob == pytest.approx(float(expected[position, event.token_id]), abs=1e-4)
        top = expected[position].topk(3)
        assert [token for token, _ in event.logprobs.top] == top.indices.tolist()
        assert [value for _, value in event.logprobs.top] == pytest.approx(top.values.tolist(), abs=1e-4)
