"""Tiny models with random weights, transformers' own answers for them, and engines that run them.

The weights are wide (std 0.15), so that greedy answers vary and a wrong key shows in them.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from weakref import WeakKeyDictionary

import safetensors.torch
import torch
import transformers
from torch import Tensor

from kvchat.engine.api.config import EngineConfig
from kvchat.engine.api.events import FinishReason, Loaded, TokenEmitted, Usage
from kvchat.engine.api.ids import SequenceId
from kvchat.engine.api.request import Request
from kvchat.engine.api.sampling_params import SamplingParams
from kvchat.engine.engine import Engine
from kvchat.engine.forward.runner import Runner
from kvchat.engine.memory.device_pool import DevicePool
from kvchat.engine.memory.rates import LEAST_TOKENS, WINDOW, Rates
from kvchat.engine.models.load import choose_device
from kvchat.engine.models.locate import locate_model
from kvchat.engine.models.weights_setting import WeightSource
from kvchat.engine.results import Handle
from kvchat.engine.scheduling.scheduler import Drafter
from kvchat.engine.sequences.batch_plan import Batch
from kvchat.engine.startup.assembly import assemble, check_settings
from kvchat.engine.startup.parts import EngineParts
from kvchat.engine.startup.weights import Candidate, load_candidate
from tests.hand_clock import HandClock
from tests.quick_disk import quick_place

VOCAB_SIZE = 512
KINDS = ("llama", "qwen3", "gemma3", "gpt2")
SAID: dict[tuple[int, ...], list[int]] = {}
"""What some engine has said behind a prompt, right or wrong."""
_PROMPTS: WeakKeyDictionary[Handle, tuple[int, ...]] = WeakKeyDictionary()
_BY_LENGTH = ("dynamic", "longrope")
"""Rotary embeddings of a token that change with what follows it."""

_DIRECTORY = TemporaryDirectory(prefix="kvchat-test-", dir=quick_place())
SEEN = Path(_DIRECTORY.name)
"""Where it is kept what was found of models when they were loaded."""

torch.set_num_threads(1)  # the matrices are tiny; more threads only wait for each other
transformers.utils.logging.disable_progress_bar()
transformers.utils.logging.set_verbosity_error()


def make_config(kind: str, **changes: Any) -> Any:
    """Return a config of `kind`; `changes` are arguments of its class."""
    return _CONFIGS[kind](**changes)


def _llama(**changes: Any) -> Any:
    return transformers.LlamaConfig(**common_sizes(num_hidden_layers=4) | changes)


def _qwen3(**changes: Any) -> Any:
    """Full and sliding layers by turns, the first one sliding."""
    mixed = {
        "head_dim": 16,
        "use_sliding_window": True,
        "sliding_window": 40,
        "max_window_layers": 0,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
    }
    return transformers.Qwen3Config(**common_sizes(num_hidden_layers=4) | mixed | changes)


def _gemma3(**changes: Any) -> Any:
    """Five sliding layers before one full layer, and a rotary embedding for each kind."""
    mixed = {
        "head_dim": 16,
        "sliding_window": 40,
        "layer_types": ["sliding_attention"] * 5 + ["full_attention"],
        "query_pre_attn_scalar": 16,
    }
    return transformers.Gemma3TextConfig(**common_sizes(num_hidden_layers=6) | mixed | changes)


def _gpt2(**changes: Any) -> Any:
    sizes = {"n_embd": 64, "n_layer": 4, "n_head": 4, "n_positions": 1024}
    return transformers.GPT2Config(**_SHARED | sizes | changes)


_SHARED = {
    "vocab_size": VOCAB_SIZE,
    "initializer_range": 0.15,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
_CONFIGS = {"llama": _llama, "qwen3": _qwen3, "gemma3": _gemma3, "gpt2": _gpt2}


def common_sizes(num_hidden_layers: int) -> dict[str, Any]:
    """Return arguments that most of transformers' configs take."""
    return _SHARED | {
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": num_hidden_layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 1024,
    }


def save_model(config: Any, model_dir: Path, eos_token_id: list[int] | None = None) -> Path:
    """Write a float32 model with weights that follow from the config alone."""
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.generation_config.eos_token_id = eos_token_id
    model.save_pretrained(model_dir)
    return model_dir


def edit_json(path: Path, **changes: Any) -> None:
    """Change fields of an object in a file."""
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def edit_tensors(path: Path, change: Callable[[dict[str, Tensor]], object]) -> None:
    """Change the tensors in a file, as a new file."""
    tensors = safetensors.torch.load_file(path)
    change(tensors)
    path.unlink()
    safetensors.torch.save_file(tensors, path, {"format": "pt"})


def token_ids(length: int, seed: int = 0) -> list[int]:
    generator = torch.Generator().manual_seed(1000 * seed + length)
    return torch.randint(1, VOCAB_SIZE, (length,), generator=generator).tolist()


class Reference:
    """What transformers itself computes, with its own eager attention and a model object of its own."""

    def __init__(self, model_dir: Path) -> None:
        self._model: Any = transformers.AutoModelForCausalLM.from_pretrained(
            model_dir, attn_implementation="eager", dtype=torch.float32
        ).eval()
        rope = getattr(self._model.config, "rope_parameters", None)
        ends = self._model.generation_config.eos_token_id
        self._depends_on_length = ends is not None or any(kind in repr(rope) for kind in _BY_LENGTH)

    def answer(self, prompt: Sequence[int], num_tokens: int) -> list[int]:
        """Return `generate`'s greedy continuation.

        What an engine has said is held to what one pass over all of it, without a cache, would choose behind
        each token, which takes a tenth of the time. What it would not, or only just, is left to `generate`.
        """
        said = SAID.get(tuple(prompt), [])[:num_tokens]
        if len(said) == num_tokens and not self._depends_on_length and self._chooses(prompt, said):
            return said
        return self.generate(prompt, num_tokens)

    def _chooses(self, prompt: Sequence[int], said: list[int]) -> bool:
        """Whether each of the tokens is what greedy decoding takes behind those before it, and surely so."""
        rows = self.logits([*prompt, *said])[len(prompt) - 1 : -1]
        best = rows.topk(2)
        is_sure = bool((best.values[:, 0] - best.values[:, 1] > 1e-3 * rows.abs().amax(1)).all())
        return is_sure and best.indices[:, 0].tolist() == said

    @torch.inference_mode()
    def generate(self, prompt: Sequence[int], num_tokens: int) -> list[int]:
        ids = torch.tensor([list(prompt)])
        out = self._model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=num_tokens, do_sample=False
        )
        return out[0, len(prompt) :].tolist()

    @torch.inference_mode()
    def logits(self, ids: Sequence[int]) -> Tensor:
        """Return the logits behind every token of one pass over all of them, without a cache."""
        return self._model(input_ids=torch.tensor([list(ids)]), use_cache=False).logits[0]


@cache
def reference(model_dir: Path) -> Reference:
    return Reference(model_dir)


class RecordingRunner:
    """Runs the batches of another runner and keeps the logits, and the sizes of the chunks."""

    def __init__(self, inner: Runner, device_pool: DevicePool) -> None:
        self._inner = inner
        self.device_pool = device_pool
        self.rows: dict[tuple[SequenceId, int], Tensor] = {}
        """Logits behind the token at a sequence's position."""
        self.batches: list[Batch] = []

    def run(self, batch: Batch) -> Tensor:
        logits = self._inner.run(batch)
        self.batches.append(batch)
        positions = [
            (chunk.sequence, position)
            for chunk in batch.chunks
            for position in range(chunk.end - chunk.num_rows, chunk.end)
        ]
        for place, row in zip(positions, logits, strict=True):
            self.rows[place] = row  # that of a draft which was wrong, until its position is computed again
        return logits

    def row(self, sequence: SequenceId, position: int) -> Tensor:
        return self.rows[sequence, position]


def open_engine(model_dir: Path, **settings: Any) -> Engine:
    return open_recorded(model_dir, **settings)[0]


def open_recorded(
    model_dir: Path, drafter: Drafter | None = None, candidate: Candidate | None = None, **settings: Any
) -> tuple[Engine, RecordingRunner]:
    """Return an engine on the processor with blocks of 16 tokens, and its runner's record. A step brings one
    token of each answer, unless drafts or a drafter are asked for. Loading beats computing.
    """
    config = EngineConfig(**{"device": "cpu", "block_size": 16, "seed": 0, "speculate": "off"} | settings)
    parts = build(model_dir, config, candidate)
    make_computing_slow(parts.rates)
    recorder = RecordingRunner(parts.runner, parts.pool)
    return Engine(replace(parts, runner=recorder, drafter=drafter or parts.drafter)), recorder


def open_on_clock(model_dir: Path, **settings: Any) -> tuple[Engine, HandClock]:
    """Return an engine as `open_engine` does, on a clock that a test moves."""
    config = EngineConfig(**{"device": "cpu", "block_size": 16, "speculate": "off"} | settings)
    parts, clock = build(model_dir, config), HandClock()
    make_computing_slow(parts.rates)
    return Engine(parts, clock), clock


def build(model_dir: Path, config: EngineConfig, candidate: Candidate | None = None) -> EngineParts:
    """Return what `build_parts` does.

    Args:
        candidate: the model, if it is in memory. Engines that serve it after each other share its weights.
    """
    check_settings(config)
    location = locate_model(str(model_dir))
    return assemble(location.name, candidate or load(location.path, config), config)


def load(model_dir: Path, config: EngineConfig) -> Candidate:
    """Load a model. Engines of this process check it once, as those of one cache directory do."""
    source = WeightSource(model_dir=model_dir, adapter_dir=config.adapter)
    if not config.weights.startswith("int"):  # what is quantized is kept there, too
        config = replace(config, cache_dir=SEEN)
    return load_candidate(source, config, choose_device(config.device))


def make_computing_slow(rates: Rates) -> None:
    """Let computing seem to take days: so small a model computes faster than a busy machine's disk reads, and
    would compute what a test wants to see loaded.
    """
    for _ in range(WINDOW):
        rates.observe_prefill(LEAST_TOKENS, 0, 1e6)
    rates.observe_prefill = lambda *_: None  # type: ignore[method-assign]  # what it takes in truth


def submit(engine: Engine, ids: Sequence[int], num_tokens: int, sequence: SequenceId | None = None) -> Handle:
    sampling = SamplingParams(max_tokens=num_tokens)
    handle = engine.submit(Request(token_ids=tuple(ids), sampling=sampling, sequence=sequence))
    _PROMPTS[handle] = tuple(ids)
    return handle


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a request brought."""

    token_ids: list[int]
    finish_reason: FinishReason
    usage: Usage
    loaded: Loaded
    error: str | None


def finish(engine: Engine, handle: Handle) -> Answer:
    """Step until the request has ended, with every invariant checked after every step."""
    tokens = []
    for event in handle:
        engine.check_integrity()
        if isinstance(event, TokenEmitted):
            tokens.append(event.token_id)
    finished = handle.result
    assert finished is not None
    if handle in _PROMPTS:
        SAID[_PROMPTS[handle]] = tokens
    result = Answer(
        token_ids=tokens,
        finish_reason=finished.reason,
        usage=finished.usage,
        loaded=finished.loaded,
        error=finished.error,
    )
    check_counts(result)
    return result


def answer(
    engine: Engine, ids: Sequence[int], num_tokens: int = 24, sequence: SequenceId | None = None
) -> Answer:
    """Return a greedy answer. The sequence it ran on is released unless it was given."""
    handle = submit(engine, ids, num_tokens, sequence)
    result = finish(engine, handle)
    if sequence is None:
        engine.release(handle.sequence)
    engine.check_integrity()
    return result


def check_counts(result: Answer) -> None:
    """What a request says about its tokens adds up."""
    usage = result.usage
    assert usage.completion_tokens == len(result.token_ids)
    assert result.loaded.total == usage.cached_tokens
    if result.token_ids:
        assert usage.cached_tokens + usage.computed_tokens == usage.prompt_tokens
        assert usage.computed_tokens >= 1
