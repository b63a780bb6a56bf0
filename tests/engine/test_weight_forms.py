"""Weights in other forms: what an engine computes with them, how they are kept, and what is refused."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer

from kvchat.engine.api.config import EngineConfig
from kvchat.engine.engine import Engine
from kvchat.engine.kernels.quantized_linear import dequantize
from kvchat.engine.models.checkpoints.prepared import prepared_bytes
from kvchat.engine.models.linear.quantized import QuantizedLinear, quantize_linears, replace
from kvchat.engine.models.load import load_model
from kvchat.engine.models.locate import locate_model
from kvchat.engine.startup.assembly import build_parts
from kvchat.errors import ConfigError, KvchatError
from tests.engine.conftest import OpenEngine, TinyModels
from tests.engine.test_adapters import WITH_PEFT, load, save_adapter
from tests.engine.tiny_models import answer, edit_json, edit_tensors, reference, token_ids
from tools.starter.batches import Batches
from tools.starter.corpus import GENERAL_MIX

pytestmark = WITH_PEFT

PROMPT = token_ids(100)
FORMS = {"int8": 8, "int4": 4}
CPU = torch.device("cpu")


@pytest.mark.covering(1)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", ["llama", "qwen3", "gemma3", "gpt2"])
def test_an_engine_answers_as_transformers_does_with_the_dequantized_numbers(
    kind: str, form: str, tiny: TinyModels, open_engine: OpenEngine, tmp_path: Path
) -> None:
    plain = save_dequantized(tiny(kind), FORMS[form], tmp_path / "plain")
    engine = open_engine(tiny(kind), weights=form, cache_dir=tmp_path / "cache")
    expected = reference(plain).answer(PROMPT, 24)
    assert answer(engine, PROMPT, 24).token_ids == expected
    # Of GPT-2 the last layer alone is a linear one, and keeps 8 bits.
    assert engine.snapshot().weights == ("int8" if kind == "gpt2" else form)


def test_the_second_start_finds_weights_and_blocks_of_the_first(tiny: TinyModels, tmp_path: Path) -> None:
    told: list[list[str]] = []
    fingerprints = set()
    for _ in range(2):
        told.append([])
        fingerprints.add(start(tiny("llama"), told[-1], weights="int8", cache_dir=tmp_path / "cache"))
    assert any("100%" in words or "9" in words for words in told[0])
    assert told[1] == []
    assert len(fingerprints) == 1


def test_blocks_make_room_for_weights_before_those_are_written(
    tiny: TinyModels, open_engine: OpenEngine, tmp_path: Path
) -> None:
    start(tiny("llama"), [], weights="int8", cache_dir=tmp_path / "sized")
    weights = prepared_bytes(tmp_path / "sized" / "weights")
    engine = open_engine(tiny("llama"), cache_dir=tmp_path / "cache")
    answer(engine, token_ids(900), 8)
    engine.close()
    before = blocks_bytes(tmp_path / "cache")
    limit = weights + before // 2
    left: list[int] = []
    told = Told(lambda: left.append(blocks_bytes(tmp_path / "cache")))
    start(tiny("llama"), told, weights="int8", cache_dir=tmp_path / "cache", disk_bytes=limit)
    assert "writing int8 weights" in told
    assert before > left[told.index("writing int8 weights")] > 0
    assert left[told.index("writing int8 weights")] + weights <= limit


class Told(list[str]):
    """What was reported; looks around with each word."""

    def __init__(self, look: Callable[[], object]) -> None:
        super().__init__()
        self._look = look

    def append(self, words: str) -> None:
        self._look()
        super().append(words)


def blocks_bytes(cache_dir: Path) -> int:
    return sum(path.stat().st_size for path in (cache_dir / "blocks").rglob("*.*"))


def test_every_form_has_blocks_of_its_own(tiny: TinyModels, tmp_path: Path) -> None:
    forms = ("auto", "bf16", "int8", "int4")
    found = {start(tiny("llama"), [], weights=form, cache_dir=tmp_path / "cache") for form in forms}
    assert len(found) == len(forms)


def test_prepared_weights_that_were_damaged_are_made_again(
    tiny: TinyModels, open_engine: OpenEngine, tmp_path: Path
) -> None:
    settings = {"weights": "int4", "cache_dir": tmp_path / "cache"}
    expected = answer(open_engine(tiny("llama"), **settings), PROMPT).token_ids
    (prepared,) = (tmp_path / "cache" / "weights").glob("*/model.safetensors")
    whole = prepared.read_bytes()
    for damaged in (whole[:-1], whole[:5000] + bytes([whole[5000] ^ 1]) + whole[5001:], b""):
        prepared.unlink()
        prepared.write_bytes(damaged)
        again = open_engine(tiny("llama"), **settings)
        assert answer(again, PROMPT).token_ids == expected
        assert prepared.read_bytes() == whole


def test_prepared_weights_are_private_and_keep_within_their_limit(tiny: TinyModels, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    for form in ("int8", "int4", "int8"):
        start(tiny("llama"), [], weights=form, cache_dir=cache, disk_bytes=1)
        (kept,) = (path for path in (cache / "weights").iterdir() if path.is_dir())
        assert kept.stat().st_mode & 0o777 == 0o700
        assert all(file.stat().st_mode & 0o777 == 0o600 for file in kept.iterdir())


def test_without_a_cache_directory_nothing_is_kept(
    tiny: TinyModels, open_engine: OpenEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    plain = save_dequantized(tiny("llama"), 8, tmp_path / "plain")
    engine = open_engine(tiny("llama"), weights="int8")
    assert answer(engine, PROMPT).token_ids == reference(plain).answer(PROMPT, 24)
    assert list(tmp_path.glob("kvchat-*")) == []


def test_an_adapter_is_merged_before_weights_are_quantized(
    tiny: TinyModels, open_engine: OpenEngine, tmp_path: Path
) -> None:
    adapter = save_adapter(tiny("llama"), tmp_path / "adapter", "llama")
    merged = peft.PeftModel.from_pretrained(load(tiny("llama")), adapter).merge_and_unload()
    merged.save_pretrained(tmp_path / "merged")
    plain = save_dequantized(tmp_path / "merged", 8, tmp_path / "plain")
    engine = open_engine(tiny("llama"), weights="int8", adapter=adapter, cache_dir=tmp_path / "cache")
    other = open_engine(tiny("llama"), weights="int8", cache_dir=tmp_path / "cache")
    expected = reference(plain).answer(PROMPT, 24)
    assert answer(engine, PROMPT, 24).token_ids == expected != answer(other, PROMPT, 24).token_ids


def test_the_starter_loses_little() -> None:
    """Against float32, where it answers: perplexity, agreement on the next token, error of the logits."""
    model_dir = locate_model("starter").path
    tokenizer = Tokenizer.from_file(str(model_dir / "tokenizer.json"))
    ids, weights = Batches(tokenizer).draw(seed=10**6, num_sequences=4, length=512, mix=GENERAL_MIX)
    is_answer = weights[:, 1:] >= 1
    plain = logits(load_model(model_dir, "auto", CPU).module, ids)[is_answer]
    assert len(plain) > 300
    for bits, (most_ratio, least_agreement, most_error) in {
        8: (1.01, 0.99, 0.04),
        4: (1.3, 0.93, 0.4),
    }.items():
        module = load_model(model_dir, "auto", CPU).module
        assert len(list(quantize_linears(module, bits))) > 10
        found = logits(module, ids)[is_answer]
        ratio = (loss(found, ids[:, 1:][is_answer]) - loss(plain, ids[:, 1:][is_answer])).exp().item()
        agreement = (found.argmax(-1) == plain.argmax(-1)).float().mean().item()
        error = ((found - plain).norm() / plain.norm()).item()
        assert 0.99 < ratio < most_ratio
        assert agreement > least_agreement
        assert 0 < error < most_error


def test_weights_in_blocks_of_8_bit_floats_are_expanded(
    tiny: TinyModels, open_engine: OpenEngine, tmp_path: Path
) -> None:
    """As DeepSeek-V3 is published: E4M3 numbers, and a float32 factor for every 128 x 128 of them, also where
    the last ones of a row or column are fewer.
    """
    model_dir = Path(shutil.copytree(tiny("llama", hidden_size=192), tmp_path / "model"))
    plain = Path(shutil.copytree(model_dir, tmp_path / "plain"))
    tensors = load_file(model_dir / "model.safetensors")
    expanded = dict(tensors)
    for name in [name for name in tensors if name.endswith("_proj.weight")]:
        tensors[name], factors, expanded[name] = fp8_blocks(tensors[name])
        tensors[name.replace("weight", "weight_scale_inv")] = factors
    save_file(tensors, model_dir / "model.safetensors", {"format": "pt"})
    save_file(expanded, plain / "model.safetensors", {"format": "pt"})
    quantization = {
        "quant_method": "fp8",
        "activation_scheme": "dynamic",
        "fmt": "e4m3",
        "weight_block_size": [128, 128],
    }
    edit_json(model_dir / "config.json", quantization_config=quantization)
    engine = open_engine(model_dir, cache_dir=tmp_path / "cache")
    assert answer(engine, PROMPT, 24).token_ids == reference(plain).answer(PROMPT, 24)
    quantized = save_dequantized(plain, 8, tmp_path / "quantised")
    engine = open_engine(model_dir, weights="int8", cache_dir=tmp_path / "cache")
    assert answer(engine, PROMPT, 24).token_ids == reference(quantized).answer(PROMPT, 24)


def fp8_blocks(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return E4M3 numbers, their factors, and what both stand for."""
    rows, columns = weight.shape
    padded = torch.nn.functional.pad(weight, (0, -columns % 128, 0, -rows % 128))
    blocks = padded.unflatten(0, (-1, 128)).unflatten(2, (-1, 128))
    factors = blocks.abs().amax((1, 3)) / 448
    numbers = (blocks / factors[:, None, :, None]).to(torch.float8_e4m3fn)
    expanded = (numbers.float() * factors[:, None, :, None]).flatten(2).flatten(0, 1)[:rows, :columns]
    return numbers.flatten(2).flatten(0, 1)[:rows, :columns].contiguous(), factors, expanded.contiguous()


def test_a_checkpoint_that_is_quantized_is_not_quantized_again(tiny: TinyModels, tmp_path: Path) -> None:
    start(tiny("llama"), [], weights="int8", cache_dir=tmp_path / "cache")
    (made,) = (path for path in (tmp_path / "cache" / "weights").iterdir() if path.is_dir())
    with pytest.raises(ConfigError, match="quantized already"):
        start(made, [], weights="int4", cache_dir=tmp_path / "cache")


def test_weights_that_are_not_finite_are_refused(tiny: TinyModels, tmp_path: Path) -> None:
    model_dir = Path(shutil.copytree(tiny("llama"), tmp_path / "model"))
    name = "model.layers.1.mlp.up_proj.weight"
    edit_tensors(model_dir / "model.safetensors", lambda tensors: tensors[name][3].fill_(float("nan")))
    with pytest.raises(KvchatError, match="not finite"):
        start(model_dir, [], weights="int8", cache_dir=tmp_path / "cache")
    assert [path for path in (tmp_path / "cache" / "weights").iterdir() if path.is_dir()] == []


def start(model_dir: Path, told: list[str], **settings: Any) -> str:
    """Start an engine and end it again; return its fingerprint."""
    config = EngineConfig(**{"device": "cpu", "block_size": 16} | settings)
    engine = Engine(build_parts("model", model_dir, config, told.append))
    engine.close()
    return engine.info.fingerprint


def save_dequantized(model_dir: Path, bits: int, target: Path) -> Path:
    """Write a plain model with exactly the numbers that quantised weights stand for."""
    module: Any = transformers.AutoModelForCausalLM.from_pretrained(model_dir)
    for name, _ in list(quantize_linears(module, bits)):
        layer = module.get_submodule(name)
        assert isinstance(layer, QuantizedLinear)
        plain = torch.nn.Linear(layer.in_features, layer.out_features, bias=layer.bias is not None)
        plain.weight = torch.nn.Parameter(dequantize(layer.quantized))
        plain.bias = layer.bias
        replace(module, name, plain)
    module.config.tie_word_embeddings = False
    module.save_pretrained(target)
    return target


@torch.inference_mode()
def logits(module: Any, ids: torch.Tensor) -> torch.Tensor:
    """Return the logits of every token's successor [B, L, V] for ids [B, L + 1]."""
    return module(ids[:, :-1]).logits.float()


def loss(found: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.cross_entropy(found, ids)
