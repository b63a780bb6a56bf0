"""Beam search against transformers', and what it does to blocks."""

from pathlib import Path

import pytest
import torch
import transformers

from kvchat.engine.api.events import FinishReason
from kvchat.engine.api.ids import BlockKey, BranchId, RequestId
from kvchat.engine.api.request import Request
from kvchat.engine.api.sampling_params import SamplingParams
from kvchat.engine.cache.branch import Branch
from kvchat.engine.cache.plan import Copy
from kvchat.engine.engine import Engine
from kvchat.engine.entry import Entry
from kvchat.engine.family import Family
from kvchat.errors import InvalidRequest
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
    engine.release(handle.branch)
    assert not engine.snapshot().branches


def test_a_cancelled_search_keeps_its_best_beam_alone(model_dir: Path) -> None:
    engine = open_engine(model_dir)
    sampling = SamplingParams(max_tokens=30, beam_width=4, ignore_eos=True)
    handle = engine.submit(Request(token_ids=tuple(token_ids(20)), sampling=sampling))
    for _ in range(5):
        engine.step()
    handle.cancel()
    engine.step()
    assert handle.result is not None
    assert [end.reason for end in handle.result.samples] == [FinishReason.CANCELLED]
    assert [branch.branch for branch in engine.snapshot().branches] == [handle.branch]
    engine.check_integrity()


def test_a_fork_of_a_beam_that_is_being_loaded_computes_what_it_lacks() -> None:
    """The beam was preempted while it was held; nothing is on its way for the fork."""
    branch = Branch(BranchId(1), "", BlockKey(b""), token_ids(40), [])
    fork = Branch(BranchId(2), "", BlockKey(b""), token_ids(40), [])
    beam = Entry(
        id=RequestId(1),
        request=Request(token_ids=tuple(token_ids(40)), sampling=SamplingParams(beam_width=2)),
        branch=branch,
        max_tokens=4,
        submitted_s=0.0,
        prompt_len=40,
        limit=16,
    )
    assert Family(beam, [beam]).sibling(beam, RequestId(2), fork, sample=0).num_due == 40


@pytest.mark.parametrize("wrong", [{"n": 3}, {"temperature": 1.0}, {"best_of": 2}])
def test_contradictory_searches_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(InvalidRequest):
        SamplingParams(**{"beam_width": 2} | wrong)
