"""Beam search against transformers', and what it does to blocks."""

from pathlib import Path

import pytest
import torch
import transformers

from kvchat.engine.api.events import FinishReason, TokenEmitted
from kvchat.engine.api.request import Request
from kvchat.engine.api.sampling_params import SamplingParams
from kvchat.engine.cache.block_operations import Copy
from kvchat.engine.engine import Engine
from kvchat.engine.results import collect
from kvchat.errors import PoolExhausted
from tests.engine.tiny_models import make_config, open_engine, open_recorded, save_model, token_ids

pytestmark = pytest.mark.cpu

EOS = [7, 19, 101]


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(make_config("qwen3"), tmp_path_factory.mktemp("qwen3"), eos_token_id=EOS)


def expected_answers(model_dir: Path, prompt: list[int], width: int, penalty: float) -> list[list[int]]:
    peer = transformers.AutoModelForCausalLM.from_pretrained(model_dir, attn_implementation="eager").eval()
    ids = torch.tensor([prompt])
    out = peer.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=30,
        num_beams=width,
        num_return_sequences=width,
        do_sample=False,
        length_penalty=penalty,
        early_stopping=False,
        eos_token_id=EOS,
        pad_token_id=0,
    )
    return [trimmed(row[len(prompt) :].tolist()) for row in out]


def trimmed(ids: list[int]) -> list[int]:
    """Return an answer without what transformers pads it with."""
    end = next((at for at, token in enumerate(ids) if token in EOS), len(ids) - 1)
    return ids[: end + 1]


def search(engine: Engine, prompt: list[int], width: int, penalty: float) -> list[list[int]]:
    sampling = SamplingParams(max_tokens=30, beam_width=width, n=width, length_penalty=penalty)
    (result,) = engine.generate([prompt], sampling)
    return [sample.token_ids for sample in result.samples]


@pytest.mark.covering(1)
@pytest.mark.parametrize("penalty", [1.0, 0.0, 2.0])
@pytest.mark.parametrize("width", [2, 5])
@pytest.mark.parametrize("length", [3, 40, 77])
def test_beams_are_those_transformers_finds(model_dir: Path, width: int, penalty: float, length: int) -> None:
    prompt = token_ids(length)
    assert search(open_engine(model_dir), prompt, width, penalty) == expected_answers(
        model_dir, prompt, width, penalty
    )


def test_beams_are_the_same_when_a_step_holds_only_some_of_them(model_dir: Path) -> None:
    prompt = token_ids(40)
    narrow = open_engine(model_dir, max_batch_tokens=3)
    assert search(narrow, prompt, 5, 1.0) == search(open_engine(model_dir), prompt, 5, 1.0)


def test_a_beams_past_is_shared_and_only_tails_are_copied(model_dir: Path) -> None:
    prompt = token_ids(64)  # four whole blocks
    engine, recorder = open_recorded(model_dir)
    handle = engine.submit(
        Request(token_ids=tuple(prompt), sampling=SamplingParams(max_tokens=30, beam_width=4))
    )
    while handle.result is None:
        engine.step()
        engine.check_integrity()
        full = next(group for group in engine.snapshot().groups if group.kind == "full")
        assert full.used_blocks <= 4 + 2 * 4 + 4  # the prompt, two blocks a beam, finished answers' tails
    copies = [move for batch in recorder.batches for move in batch.moves]
    assert copies
    assert all(isinstance(move, Copy) and move.num_tokens < 16 for move in copies)
    engine.release(handle.sequence)
    assert not engine.snapshot().sequences


def test_a_cancelled_search_keeps_its_best_beam_alone(model_dir: Path) -> None:
    engine = open_engine(model_dir)
    sampling = SamplingParams(max_tokens=30, beam_width=4, ignore_eos=True)
    handle = engine.submit(Request(token_ids=tuple(token_ids(20)), sampling=sampling))
    for _ in range(5):
        engine.step()
    handle.cancel()
    told = [event for event in engine.step() if isinstance(event, TokenEmitted)]
    assert handle.result is not None
    assert len(told) == handle.result.usage.completion_tokens == 5
    assert {event.sequence for event in told} == {handle.sequence}
    assert [end.reason for end in handle.result.samples] == [FinishReason.CANCELLED]
    assert [sequence.sequence for sequence in engine.snapshot().sequences] == [handle.sequence]
    engine.check_integrity()


def sized_engine(model_dir: Path, num_blocks: int) -> Engine:
    """Return an engine with `num_blocks` blocks in its full group, and enough for one beam in the other."""
    groups = open_engine(model_dir).snapshot().groups
    device_bytes = sum(group.block_bytes * (num_blocks if group.kind == "full" else 5) for group in groups)
    engine = open_engine(model_dir, device_bytes=device_bytes, max_batch_tokens=16)
    full = next(group for group in engine.snapshot().groups if group.kind == "full")
    assert full.total_blocks == num_blocks
    return engine


def run_all(engine: Engine, requests: list[Request]) -> list[list[list[int]]]:
    """Return the answers of requests that run together, with every invariant checked after every step."""
    handles = [engine.submit(request) for request in requests]
    while engine.has_work:
        engine.step()
        engine.check_integrity()
    results = [collect(handle) for handle in handles]
    assert all(0 < result.usage.computed_tokens <= result.usage.prompt_tokens for result in results)
    return [[sample.token_ids for sample in result.samples] for result in results]


def endless(length: int, num_tokens: int, priority: int = 0, **sampling: int) -> Request:
    """Return a request whose answer has `num_tokens` tokens in any case."""
    params = SamplingParams(**{"max_tokens": num_tokens, "ignore_eos": True} | sampling)
    return Request(token_ids=tuple(token_ids(length)), sampling=params, priority=priority)


@pytest.mark.parametrize(("num_blocks", "width"), [(6, 3), (7, 8)])
def test_a_search_fits_where_one_of_its_beams_does(model_dir: Path, num_blocks: int, width: int) -> None:
    """The last beam computes 70 + 27 - 1 tokens, six blocks; the beams take turns in them."""
    request = endless(70, 27, beam_width=width, n=2)
    answers = run_all(sized_engine(model_dir, num_blocks), [request])
    assert answers == run_all(open_engine(model_dir), [request])


@pytest.mark.parametrize("width", [1, 3])
def test_a_search_that_can_never_fit_is_refused_before_it_begins(model_dir: Path, width: int) -> None:
    engine = sized_engine(model_dir, 6)
    with pytest.raises(PoolExhausted, match=r"needs 7 blocks and there are 6, .*--kv-device-bytes"):
        engine.submit(endless(70, 28, beam_width=width))
    assert not engine.has_work


def test_searches_under_pressure_end_as_they_do_alone(model_dir: Path) -> None:
    """Beams that wait for others of their search give way to whoever has something to compute."""
    requests = [
        endless(70, 20, beam_width=3, n=2),
        endless(60, 30, priority=1),
        endless(33, 20, beam_width=4, n=4),
        endless(75, 20),
        endless(64, 12, priority=1, beam_width=3),
    ]
    alone = [run_all(open_engine(model_dir), [request])[0] for request in requests]
    assert run_all(sized_engine(model_dir, 6), requests) == alone
