"""Prompts where the processor multiplies bfloat16: fused layers compute them, no worse than the model."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor
from transformers.models.llama.modeling_llama import LlamaDecoderLayer

from kvchat.engine.forward.fused_pass import MOST_ROWS, FusedLayers
from kvchat.engine.kernels.decoder_layers.native import rounds_products
from kvchat.engine.kernels.native.library import library
from tests.engine.conftest import OpenRecorded
from tests.engine.test_fused_layers import PROMPTS, SIZES
from tests.engine.tiny_models import finish, save_model, submit

pytestmark = pytest.mark.cpu


@pytest.fixture(autouse=True)
def native(native_kernels: None) -> None:
    found = library()
    if found is None or not rounds_products(found):
        pytest.skip("this processor does not multiply bfloat16, or in tiles")


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    sizes = SIZES | {"hidden_size": 96, "intermediate_size": 160}
    return save_model(transformers.LlamaConfig(**sizes), tmp_path_factory.mktemp("rounded") / "model")


@pytest.mark.parametrize("weights", ["auto", "int8", "int4"])
def test_the_model_itself_computes_no_prompt(
    weights: str, model_dir: Path, open_recorded: OpenRecorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, _ = open_recorded(model_dir, dtype="bfloat16", weights=weights)

    def fail(*_args: object, **_kwargs: object) -> None:
        raise AssertionError("a layer of the model ran")

    monkeypatch.setattr(LlamaDecoderLayer, "forward", fail)
    assert len(finish(engine, submit(engine, PROMPTS[2], 4)).token_ids) == 4


def test_a_prompt_is_as_near_to_float32_as_transformers_own_bfloat16(
    model_dir: Path, open_recorded: OpenRecorded
) -> None:
    engine, recorder = open_recorded(model_dir, dtype="bfloat16")
    prompt = PROMPTS[2]
    handle = submit(engine, prompt, 1)
    finish(engine, handle)
    exact, theirs = (last_logits(model_dir, prompt, dtype) for dtype in (torch.float32, torch.bfloat16))
    ours = recorder.row(handle.sequence, len(prompt) - 1)
    assert 0 < (ours - exact).norm() < 1.2 * (theirs - exact).norm()


@pytest.mark.parametrize(("weights", "most"), [("int8", 1.25), ("int4", 1.03)])
def test_rounded_inputs_add_less_error_than_quantized_weights_have(
    weights: str, most: float, model_dir: Path, open_recorded: OpenRecorded
) -> None:
    """Beside the model in float32, as squares of errors. Steps of 16 tokens are not rounded: theirs is
    that of the weights.
    """
    prompts = [prompt for prompt in PROMPTS if len(prompt) > 32]
    exact = torch.stack([last_logits(model_dir, prompt, torch.float32) for prompt in prompts])
    found = []
    for max_batch_tokens in (512, 16):
        engine, recorder = open_recorded(
            model_dir, dtype="bfloat16", weights=weights, max_batch_tokens=max_batch_tokens
        )
        rows = []
        for prompt in prompts:
            handle = submit(engine, prompt, 1)
            finish(engine, handle)
            rows.append(recorder.row(handle.sequence, len(prompt) - 1))
        found.append(torch.stack(rows))
    rounded, fine = ((each - exact).norm() for each in found)
    assert not torch.equal(*found)
    assert rounded < most * fine


def last_logits(model_dir: Path, prompt: list[int], dtype: torch.dtype) -> Tensor:
    model = transformers.AutoModelForCausalLM.from_pretrained(model_dir, dtype=dtype)
    with torch.inference_mode():
        logits: Tensor = model(torch.tensor([prompt])).logits[0, -1].float()
    return logits


def test_layers_that_compute_something_else_when_rounded_are_used_for_short_steps_alone(
    model_dir: Path, open_recorded: OpenRecorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    hidden = FusedLayers.hidden

    def wrong(self: FusedLayers, *args: Any, is_rounded: bool = False) -> Tensor:
        return hidden(self, *args, is_rounded=is_rounded) * (1.5 if is_rounded else 1.0)

    monkeypatch.setattr(FusedLayers, "hidden", wrong)
    engine, _ = open_recorded(model_dir, dtype="bfloat16")
    assert engine.info.unfused is None
    seen = set()
    logits = FusedLayers.logits

    def watched(self: FusedLayers, row: Any, *, is_rounded: bool = False) -> Tensor:
        seen.add((len(row.token_ids), is_rounded))
        return logits(self, row, is_rounded=is_rounded)

    monkeypatch.setattr(FusedLayers, "logits", watched)
    finish(engine, submit(engine, PROMPTS[2], 4))
    assert {is_rounded for _, is_rounded in seen} == {False}
    assert max(number for number, _ in seen) <= MOST_ROWS


def test_a_prompt_that_is_cut_alike_has_the_same_bits_whatever_shares_its_step(
    model_dir: Path, open_recorded: OpenRecorded
) -> None:
    """Beside another prompt, and beside answers."""
    found = []
    for others in ([], [PROMPTS[4]], [PROMPTS[1], PROMPTS[0]]):
        engine, recorder = open_recorded(model_dir, dtype="bfloat16")
        for other in others:
            submit(engine, other, 20)
            if len(others) > 1:
                engine.step()
        handle = submit(engine, PROMPTS[2], 1)
        finish(engine, handle)
        found.append(recorder.row(handle.sequence, len(PROMPTS[2]) - 1))
    for other in found[1:]:
        assert torch.equal(other, found[0])
