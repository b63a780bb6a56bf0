"""Several answers to one prompt, on shared blocks."""

from pathlib import Path

import pytest

from kvchat.engine.api.events import FinishReason, RequestFinished, TokenEmitted
from kvchat.engine.api.request import Request
from kvchat.engine.api.sampling_params import SamplingParams
from tests.engine.conftest import TinyModels
from tests.engine.tiny_models import open_engine, token_ids

pytestmark = pytest.mark.cpu

NUM_TOKENS = 20


@pytest.fixture
def model_dir(tiny: TinyModels) -> Path:
    return tiny("qwen3")


def test_each_answer_is_the_one_its_seed_gives_alone(model_dir: Path) -> None:
    prompt = token_ids(70)
    engine = open_engine(model_dir)
    (together,) = engine.generate(
        [prompt], SamplingParams(max_tokens=NUM_TOKENS, temperature=1.0, seed=5, n=3)
    )
    alone = [
        open_engine(model_dir).generate(
            [prompt], SamplingParams(max_tokens=NUM_TOKENS, temperature=1.0, seed=5 + sample)
        )[0]
        for sample in range(3)
    ]
    assert [sample.token_ids for sample in together.samples] == [result.token_ids for result in alone]
    assert len({tuple(sample.token_ids) for sample in together.samples}) == 3


def test_the_prompt_is_computed_once_and_its_blocks_are_shared(model_dir: Path) -> None:
    prompt = token_ids(70)  # four blocks of 16 tokens and a tail
    engine = open_engine(model_dir)
    sampling = SamplingParams(max_tokens=NUM_TOKENS, temperature=1.0, seed=1, n=4)
    handle = engine.submit(Request(token_ids=tuple(prompt), sampling=sampling))
    engine.step()
    full = next(group for group in engine.snapshot().groups if group.kind == "full")
    assert (full.used_blocks, full.shared_blocks) == (5, 5)
    engine.step()
    engine.check_integrity()
    full = next(group for group in engine.snapshot().groups if group.kind == "full")
    # Each answer has its own tail now, the last holder of the shared one writes in place.
    assert (full.used_blocks, full.shared_blocks) == (4 + 4, 4)
    events = list(handle)
    finished = events[-1]
    assert isinstance(finished, RequestFinished)
    assert finished.usage.prompt_tokens == finished.usage.computed_tokens == 70
    assert finished.usage.completion_tokens == 4 * NUM_TOKENS
    assert {event.sample for event in events if isinstance(event, TokenEmitted)} == {0, 1, 2, 3}
    assert {end.reason for end in finished.samples} == {FinishReason.LENGTH}


def test_best_of_returns_the_most_probable_answers(model_dir: Path) -> None:
    prompt = token_ids(40)
    engine = open_engine(model_dir)
    every = SamplingParams(max_tokens=NUM_TOKENS, temperature=1.0, seed=9, n=6, logprobs=0)
    best = SamplingParams(max_tokens=NUM_TOKENS, temperature=1.0, seed=9, n=2, best_of=6)
    (sampled,) = engine.generate([prompt], every)
    (chosen,) = engine.generate([prompt], best)
    means = [
        sum(entry.logprob for entry in sample.logprobs) / len(sample.logprobs) for sample in sampled.samples
    ]
    order = sorted(range(6), key=lambda sample: -means[sample])
    assert [sample.token_ids for sample in chosen.samples] == [
        sampled.samples[at].token_ids for at in order[:2]
    ]
    assert chosen.samples[0].mean_logprob == pytest.approx(max(means), abs=1e-4)
    assert not chosen.samples[0].logprobs  # they decided, but nobody asked to see them


def test_cancelling_ends_every_answer(model_dir: Path) -> None:
    engine = open_engine(model_dir)
    sampling = SamplingParams(max_tokens=500, temperature=1.0, seed=1, n=3)
    handle = engine.submit(Request(token_ids=tuple(token_ids(20)), sampling=sampling))
    for event in handle:
        if isinstance(event, TokenEmitted) and event.sample == 2:
            handle.cancel()
    assert handle.result is not None
    assert [end.reason for end in handle.result.samples] == [FinishReason.CANCELLED] * 3
    assert not engine.has_work
    engine.check_integrity()
