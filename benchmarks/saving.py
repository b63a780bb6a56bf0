"""Decoding while finished blocks are written to disk, beside decoding without a disk."""

from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter

import torch
import transformers

from benchmarks.table import Row
from kvchat.engine import Engine, EngineConfig, Request, SamplingParams
from kvchat.engine.api.events import TokenEmitted

PAIRS, QUICK_PAIRS = 10, 5
PROMPT_LEN = 512
NUM_TOKENS = 48
TURN_LEN, NUM_TURNS = 24, 8
SHAPE_360M = {"hidden_size": 960, "intermediate_size": 2560, "num_attention_heads": 15, "vocab_size": 49152}
FEWER_WEIGHTS = {"hidden_size": 320, "intermediate_size": 640, "num_attention_heads": 5, "vocab_size": 4096}
"""The same cache, 40 KiB per token. It decodes several times faster, so that writing weighs more."""


def measure(*, quick: bool = False) -> list[Row]:
    with TemporaryDirectory() as directory:
        model_dir = str(_write_model(Path(directory) / "model", FEWER_WEIGHTS if quick else SHAPE_360M))
        plain = Engine.load(model_dir, EngineConfig(speculate="off"))
        saving = Engine.load(model_dir, EngineConfig(cache_dir=Path(directory) / "cache", speculate="off"))
        without, beside = [], []
        for number in range(QUICK_PAIRS if quick else PAIRS):
            without.append(_decode_rate(plain, number))
            beside.append(_decode_rate(saving, number))
        written = saving.snapshot().tiers[-1].cached_bytes
        per_new = _written_per_new_byte(saving)
        plain.close()
        saving.close()
    assert written > 0
    return [
        Row.of("decode without a disk", "tokens/s", without),
        Row.of("decode while a prompt's blocks are written", "tokens/s", beside),
        Row.of("loss", "%", [100 * (1 - b / a) for a, b in zip(without, beside, strict=True)], "less than 5"),
        Row.of(
            f"bytes written of a turn of {TURN_LEN}+{NUM_TOKENS} tokens, per byte that is new", "x", per_new
        ),
    ]


def _decode_rate(engine: Engine, seed: int) -> float:
    """Return the rate behind a prompt of its own, whose blocks are being written meanwhile."""
    prompt = tuple(5 + (7 * index + 977 * seed) % 2500 for index in range(PROMPT_LEN))
    sampling = SamplingParams(max_tokens=NUM_TOKENS, ignore_eos=True)
    handle = engine.submit(Request(token_ids=prompt, sampling=sampling))
    times = [perf_counter() for event in handle if isinstance(event, TokenEmitted)]
    engine.release(handle.branch)
    return (len(times) - 1) / (times[-1] - times[0])


def _written_per_new_byte(engine: Engine) -> list[float]:
    """Return for each turn of a conversation what goes to disk for a byte that it adds: the tail is written
    whole every two seconds and when an answer ends, and replaced as it grows.
    """
    group = engine.snapshot().groups[0]
    token_bytes = group.block_bytes / engine.info.block_size
    text = [5 + (11 * index) % 2500 for index in range(PROMPT_LEN)]
    ratios = []
    for turn in range(NUM_TURNS + 1):
        before, before_len = engine.snapshot().moved.to_disk, len(text)
        text += [5 + (13 * index + turn) % 2500 for index in range(TURN_LEN)]
        sampling = SamplingParams(max_tokens=NUM_TOKENS, ignore_eos=True)
        (result,) = engine.generate([text], sampling)
        engine.drain_saves()
        text += result.token_ids
        written = engine.snapshot().moved.to_disk - before
        ratios.append(written / ((len(text) - before_len) * token_bytes))
    return ratios[1:]  # the first one has the prompt before it


def _write_model(directory: Path, shape: dict[str, int]) -> Path:
    """Write a model of 32 layers with random weights."""
    config = transformers.LlamaConfig(
        num_hidden_layers=32,
        num_key_value_heads=5,
        max_position_embeddings=4096,
        **shape,
    )
    torch.manual_seed(0)
    transformers.utils.logging.disable_progress_bar()
    transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).save_pretrained(directory)
    return directory
