"""Hybrid models on the processor beside transformers, and what it takes to come back to one after a restart.

Random weights in the shapes of Qwen3.5-0.8B and LFM2-1.2B, with small vocabularies.
"""

import gc
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import torch
import transformers

from benchmarks.table import Row
from kvchat.engine import Engine, EngineConfig, SamplingParams
from kvchat.engine.api.events import TokenEmitted
from kvchat.engine.api.request import Request

CONTEXTS = (512, 4_000)
NUM_TOKENS = 16
ROUNDS = 3
VOCAB_SIZE = 32_000
_COMMON: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": True,
    "pad_token_id": 0,
    "bos_token_id": None,
    "eos_token_id": None,
}
SHAPES: dict[str, tuple[str, dict[str, Any]]] = {
    "Qwen3.5-0.8B": (
        "qwen3_5_text",
        {
            "hidden_size": 1024,
            "intermediate_size": 3584,
            "num_hidden_layers": 24,
            "num_attention_heads": 8,
            "num_key_value_heads": 2,
            "head_dim": 256,
            "linear_num_key_heads": 16,
            "linear_num_value_heads": 16,
            "linear_key_head_dim": 128,
            "linear_value_head_dim": 128,
            "layer_types": [*["linear_attention"] * 3, "full_attention"] * 6,
        },
    ),
    "LFM2-1.2B": (
        "lfm2",
        {
            "hidden_size": 2048,
            "intermediate_size": 12288,
            "num_hidden_layers": 16,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "full_attn_idxs": [2, 5, 8, 10, 12, 14],
        },
    ),
}


def measure(*, quick: bool = False) -> list[Row]:
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    rows = []
    for name in list(SHAPES)[: 1 if quick else None]:
        with TemporaryDirectory() as directory:
            rows += _shape(name, _saved(name, Path(directory, "model")), CONTEXTS[: 1 if quick else None])
    return rows


def _saved(name: str, directory: Path) -> Path:
    model_type, sizes = SHAPES[name]
    torch.manual_seed(0)
    config = transformers.CONFIG_MAPPING[model_type](**_COMMON | sizes)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.save_pretrained(directory)
    return directory


def _shape(name: str, model_dir: Path, contexts: Sequence[int]) -> list[Row]:
    """Measure both in turn. They share the machine's memory, but never its processor."""
    theirs = _Transformers(model_dir)
    config = EngineConfig(device="cpu", device_bytes=1 << 30, cache_dir=model_dir.parent / "cache")
    engine = Engine.load(str(model_dir), config)
    rows = []
    for length in contexts:
        ours_s, theirs_s = [], []
        for number in range(ROUNDS + 1):  # the first is not counted
            ids = torch.randint(1, VOCAB_SIZE, (length,), generator=torch.Generator().manual_seed(number))
            theirs_s.append(theirs.answer(ids))
            ours_s.append(_answer(engine, ids.tolist()))
        for at, what in enumerate(("prefill", "decode")):
            ratios = [peer[at] / own[at] for own, peer in zip(ours_s[1:], theirs_s[1:], strict=True)]
            speeds = [(length, NUM_TOKENS)[at] / own[at] for own in ours_s[1:]]
            rows.append(Row.of(f"{name}, {what} at {length:,}", "tokens/s", speeds))
            rows.append(Row.of("  kvchat / transformers", "x", ratios))
    del theirs
    engine.close()
    gc.collect()
    return [*rows, *_resumed(name, model_dir, config, ids.tolist())]


class _Transformers:
    """The model's own forward pass and cache."""

    def __init__(self, model_dir: Path) -> None:
        self._model: Any = transformers.AutoModelForCausalLM.from_pretrained(
            model_dir, dtype=torch.bfloat16, attn_implementation="sdpa"
        ).eval()

    @torch.inference_mode()
    def answer(self, ids: torch.Tensor) -> tuple[float, float]:
        """Return the seconds of a prompt, and of the tokens behind it."""
        start_s = perf_counter()
        out = self._model(ids[None], use_cache=True, logits_to_keep=1)
        prompt_s = perf_counter() - start_s
        for _ in range(NUM_TOKENS):
            token = out.logits[:, -1:].argmax(-1)
            out = self._model(token, past_key_values=out.past_key_values, use_cache=True)
        return prompt_s, perf_counter() - start_s - prompt_s


def _answer(engine: Engine, ids: Sequence[int]) -> tuple[float, float]:
    sampling = SamplingParams(max_tokens=NUM_TOKENS + 1, ignore_eos=True)
    start_s = perf_counter()
    handle = engine.submit(Request(token_ids=tuple(ids), sampling=sampling))
    times = [perf_counter() - start_s for event in handle if isinstance(event, TokenEmitted)]
    engine.release(handle.sequence)
    return times[0], times[-1] - times[0]


def _resumed(name: str, model_dir: Path, config: EngineConfig, ids: Sequence[int]) -> list[Row]:
    """Measure the first token of a stored prompt after a restart, beside computing it."""
    load_s, found = [], 0
    for _ in range(ROUNDS):
        engine = Engine.load(str(model_dir), config)
        start_s = perf_counter()
        handle = engine.submit(Request(token_ids=tuple(ids), sampling=SamplingParams(max_tokens=1)))
        load_s += [perf_counter() - start_s for event in handle if isinstance(event, TokenEmitted)]
        assert handle.result is not None
        found = handle.result.usage.cached_tokens
        engine.close()
    return [Row.of(f"{name}, {len(ids):,} tokens after a restart", "s", load_s, f"{found:,} reused")]
