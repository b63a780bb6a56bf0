"""Models of two shapes with random weights, made on the device; nothing is downloaded or written."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import transformers

from benchmarks.gpu.stage import Stage
from kvchat.engine.api.config import EngineConfig
from kvchat.engine.engine import Engine
from kvchat.engine.formats.format_table import metadata_builders
from kvchat.engine.forward.decode_graphs import DecodeGraphRunner, compute_anew
from kvchat.engine.forward.layerwise_check import walking_pass
from kvchat.engine.forward.layerwise_pass import LayerwisePass
from kvchat.engine.forward.model_route import choose_route
from kvchat.engine.forward.runner import Runner
from kvchat.engine.models.fingerprint import Checkpoint
from kvchat.engine.models.load import LoadedModel
from kvchat.engine.models.weights_setting import WeightSource
from kvchat.engine.sampling.sampler import Sampler
from kvchat.engine.startup.assembly import assemble
from kvchat.engine.startup.gpu import limits_of, why_not
from kvchat.engine.startup.parts import EngineParts
from kvchat.engine.startup.weights import Candidate

SHAPES: dict[str, dict[str, Any]] = {
    "1B": {
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 64,
        "vocab_size": 128256,
        "tie_word_embeddings": True,
    },
    "8B": {
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 128256,
        "tie_word_embeddings": False,
    },
}
DRY_SHAPE = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "vocab_size": 128,
    "tie_word_embeddings": True,
}
CONTEXT_LEN = 4096
DRY_BATCHES = (1, 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A model in memory. `kv_token_bytes`: of one token in all layers."""

    name: str
    module: Any
    dtype: torch.dtype
    kv_token_bytes: int

    @property
    def read_bytes(self) -> int:
        """Bytes of weights that computing one token reads: of an embedding that is not tied, one row."""
        config = self.module.config
        num_bytes = sum(parameter.nbytes for parameter in self.module.parameters())
        if not config.tie_word_embeddings:
            num_bytes -= self.module.get_input_embeddings().weight.nbytes
        return num_bytes


def make_model(stage: Stage, name: str) -> Model:
    sizes = DRY_SHAPE if stage.is_dry else SHAPES[name]
    dtype = torch.float32 if stage.is_dry else torch.bfloat16
    config = transformers.LlamaConfig(
        **sizes, max_position_embeddings=CONTEXT_LEN, bos_token_id=None, eos_token_id=None, pad_token_id=0
    )
    torch.manual_seed(stage.seed)
    with torch.device(stage.device):
        module = transformers.AutoModelForCausalLM.from_config(config, dtype=dtype).eval()
    module.generation_config.eos_token_id = None
    item_bytes = torch.empty(0, dtype=dtype).element_size()
    per_token = 2 * sizes["num_hidden_layers"] * sizes["num_key_value_heads"] * sizes["head_dim"] * item_bytes
    return Model(name=name, module=module, dtype=dtype, kv_token_bytes=per_token)


def open_engine(stage: Stage, model: Model, num_tokens: int) -> Engine:
    """Return an engine on the model whose cache holds so many tokens."""
    config = model.module.config
    loaded = LoadedModel(
        module=model.module,
        dtype=str(model.dtype).removeprefix("torch."),
        vocab_size=config.vocab_size,
        num_layers=config.num_hidden_layers,
        max_context=CONTEXT_LEN,
        eos_token_ids=frozenset(),
    )
    candidate = Candidate(
        source=WeightSource(model_dir=Path(model.name)),
        checkpoint=Checkpoint(weights=(f"random {stage.seed}",), config={"shape": model.name}),
        loaded=loaded,
        served=choose_route(loaded),
    )
    settings = EngineConfig(
        device=stage.device.type,
        device_bytes=max(num_tokens, CONTEXT_LEN + 4096) * model.kv_token_bytes,
        host_bytes=0,
        max_batch_tokens=64 if stage.is_dry else 2048,
        speculate="off",
        idle_demote_s=None,
    )
    parts = assemble(model.name, candidate, settings, lambda words: print(f"    {words}", flush=True))
    return Engine(rehearsed(parts, candidate) if stage.is_dry else parts)


def rehearsed(parts: EngineParts, candidate: Candidate) -> EngineParts:
    """Return parts that do on a processor what they do on a GPU: steps in static buffers, which walk through
    the layers, are handed in ahead and draw where the logits lie. Nothing is recorded.
    """
    groups = candidate.served.groups
    forward, reason = walking_pass(candidate.loaded, candidate.served, parts.pool)
    assert isinstance(forward, LayerwisePass), reason
    assert why_not(forward, groups) is None
    limits = limits_of(groups, parts.pool, parts.info.max_context)
    steps = DecodeGraphRunner(forward, groups, limits, compute_anew, DRY_BATCHES)
    steps.prepare()
    return replace(
        parts,
        runner=Runner(forward, metadata_builders(groups, parts.info.block_size), steps),
        runs_ahead=True,
        sampler=Sampler(None, draws_there=True),
    )
