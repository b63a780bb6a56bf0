"""Tokens per second on the starter model, beside transformers' generate on the same tokens."""

from time import perf_counter
from typing import Any

import torch
import transformers

from benchmarks.table import Row
from kvchat.engine import Engine, EngineConfig, SamplingParams
from kvchat.engine.models.locate import locate_model

ROUNDS = 5
PROMPT_LEN = 512
NUM_TOKENS = 64


def measure() -> list[Row]:
    transformers.utils.logging.set_verbosity_error()
    engine = Engine.load("starter", EngineConfig(speculate="off"))
    directory = locate_model("starter").path
    peer: Any = transformers.AutoModelForCausalLM.from_pretrained(directory).eval()
    prompts = [[5 + (7 * index + round_) % 2000 for index in range(PROMPT_LEN)] for round_ in range(ROUNDS)]
    ours, theirs = [], []
    for prompt in prompts:
        ours.append(_engine_rate(engine, prompt))
        theirs.append(_peer_rate(peer, prompt))
    engine.close()
    ratios = [a / b for a, b in zip(ours, theirs, strict=True)]
    return [
        Row.of("kvchat, prompt 512 + 64 tokens", "tokens/s", ours),
        Row.of("transformers, the same", "tokens/s", theirs),
        Row.of("ratio", "x", ratios),
    ]


def _engine_rate(engine: Engine, prompt: list[int]) -> float:
    start_s = perf_counter()
    engine.generate([prompt], SamplingParams(max_tokens=NUM_TOKENS, ignore_eos=True))
    return NUM_TOKENS / (perf_counter() - start_s)


def _peer_rate(peer: Any, prompt: list[int]) -> float:
    start_s = perf_counter()
    with torch.inference_mode():
        peer.generate(
            torch.tensor([prompt]), max_new_tokens=NUM_TOKENS, min_new_tokens=NUM_TOKENS, do_sample=False
        )
    return NUM_TOKENS / (perf_counter() - start_s)
