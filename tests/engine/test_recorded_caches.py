"""Steps in static buffers compute what others do, over latents and quantised blocks too."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from kvchat.engine.api.request import Request
from kvchat.engine.api.sampling_params import SamplingParams
from kvchat.engine.engine import Engine
from kvchat.engine.forward.decode_graphs import MOST_GATHERED, DecodeGraphRunner
from kvchat.engine.startup.gpu import why_not
from tests.engine.conftest import TinyModels
from tests.engine.latent_models import model_of
from tests.engine.overlapped_engines import AheadRunner, open_ahead
from tests.engine.tiny_models import RecordingRunner, open_recorded, token_ids

pytestmark = pytest.mark.cpu

PROMPTS = [token_ids(length, seed=1) for length in (3, 17, 47, 90)]
NUM_TOKENS = 24
LATENTS = {
    "latents": ("V2", "exact"),
    "latents, queries compressed": ("V3, YaRN, queries compressed", "exact"),
    "latents as records": ("V2", "fp8"),
}
QUANTIZED = ("fp8", "int8", "k=int4,v=int2; layers 0-1=exact")


@dataclass(frozen=True, slots=True)
class Told:
    """What an engine told: texts, and the logits behind each token."""

    texts: list[list[int]]
    logits: list[torch.Tensor]


def tell(engine: Engine, runner: RecordingRunner) -> Told:
    handles = [
        engine.submit(Request(token_ids=tuple(prompt), sampling=SamplingParams(max_tokens=NUM_TOKENS)))
        for prompt in PROMPTS
    ]
    while engine.has_work:
        engine.step()
        engine.check_integrity()
    sequences = [engine._manager.sequences[handle.sequence] for handle in handles]
    texts = [list(sequence.token_ids) for sequence in sequences]
    logits = [
        torch.stack([runner.row(sequence.id, at) for at in range(len(prompt) - 1, sequence.computed_len)])
        for prompt, sequence in zip(PROMPTS, sequences, strict=True)
    ]
    engine.close()
    return Told(texts, logits)


def compare(model_dir: Path, cache_format: str) -> AheadRunner:
    engine, runner = open_ahead(model_dir, cache_format=cache_format)
    assert why_not(runner._inner._forward, engine._manager.groups) is None
    found, wanted = tell(engine, runner), tell(*open_recorded(model_dir, cache_format=cache_format))
    for mine, theirs in zip(found.logits, wanted.logits, strict=True):
        assert torch.allclose(mine, theirs, atol=1e-3, rtol=1e-3)
    assert found.texts == wanted.texts
    return runner


@pytest.mark.parametrize("kind", LATENTS)
def test_latents_are_read_through_tables(kind: str, tmp_path: Path) -> None:
    model, cache_format = LATENTS[kind]
    runner = compare(model_of(model, tmp_path), cache_format)
    assert len(runner.ahead) >= NUM_TOKENS - 2, "nearly all steps were taken"


@pytest.mark.parametrize("cache_format", QUANTIZED)
def test_quantized_blocks_are_read_through_tables(cache_format: str, tiny: TinyModels) -> None:
    """Steps in which a block becomes old compute it outside; none of the others does."""
    runner = compare(tiny("llama"), cache_format)
    quantizing = [
        chunk
        for batch in runner.batches
        for chunk in batch.chunks
        if chunk.num_certain == 1 and chunk.end % 16 == 0
    ]
    assert quantizing
    assert all(chunk.end % 16 for batch in runner.ahead for chunk in batch.chunks if chunk.end > 32)
    assert len(runner.ahead) >= NUM_TOKENS // 2


def test_only_steps_whose_blocks_find_room_as_numbers_are_recorded(tiny: TinyModels) -> None:
    engine, runner = open_ahead(
        tiny("llama", max_position_embeddings=MOST_GATHERED // 2), cache_format="int8"
    )
    steps: Any = runner._inner._short
    assert isinstance(steps, DecodeGraphRunner)
    sizes = {(size.num_rows, size.context_len) for size in steps._steps}
    assert sizes == {(1, 4096), (8, 4096), (1, MOST_GATHERED // 2)}
    engine.close()
