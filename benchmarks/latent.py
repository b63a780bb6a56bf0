"""A decode step of latent attention over a long context, beside transformers on the same latents."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
import transformers
from torch import Tensor

from benchmarks.clock import Cost, cost_of
from benchmarks.table import Row
from kvchat.engine.api.ids import BlockId, RequestId, SequenceId
from kvchat.engine.cache.block_operations import TableChange
from kvchat.engine.formats.format_table import metadata_builders
from kvchat.engine.formats.fp8_latent.spec import Fp8LatentSpec
from kvchat.engine.formats.groups_in_format import stored_groups
from kvchat.engine.forward.activation_memory import peak_bytes
from kvchat.engine.forward.model_route import ModelPlan, choose_route
from kvchat.engine.forward.runner import Runner
from kvchat.engine.kernels.latent_record.reference import pack
from kvchat.engine.memory.device_pool import DevicePool
from kvchat.engine.models.hook import IMPLEMENTATION, set_implementation
from kvchat.engine.models.load import LoadedModel, load_model
from kvchat.engine.sequences.batch_plan import Batch, Chunk

ROUNDS = 5
BLOCK_SIZE = 64
SPEED_LEN = 16_384
MEMORY_LEN = 32_768
THEIRS = "transformers"
AT_LEAST = "at least 5"
LATENT_SIZES = {"kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128}


@dataclass(frozen=True, slots=True)
class Step:
    """One decode step, the last of so many tokens on the same latents: ours by format, and transformers'."""

    ours: Mapping[str, Callable[[], Tensor]]
    theirs: Callable[[], Tensor]
    token_bytes: Mapping[str, int]


def measure() -> list[Row]:
    transformers.utils.logging.set_verbosity_error()
    with TemporaryDirectory() as directory:
        loaded = _load(Path(directory))
    return [*_speed(loaded), *_memory(loaded)]


def _speed(loaded: LoadedModel) -> list[Row]:
    step = _step(loaded, SPEED_LEN)
    costs: dict[str, list[Cost]] = {name: [] for name in (*step.ours, THEIRS)}
    for _ in range(ROUNDS):
        for name, run in _all(loaded, step).items():
            costs[name].append(cost_of(run))
    theirs, exact = costs[THEIRS], costs["exact"]
    logits = {name: run() for name, run in _all(loaded, step).items()}
    rows = [
        Row.of(f"{name}, one token at {SPEED_LEN:,}", "ms", [1e3 * cost.wall_s for cost in found])
        for name, found in costs.items()
    ]
    for name in step.ours:
        pairs = list(zip(costs[name], theirs, strict=True))
        rows.append(Row.of(f"{name} / transformers", "x", [b.wall_s / a.wall_s for a, b in pairs], AT_LEAST))
        rows.append(Row.of("  by processor time", "x", [b.cpu_s / a.cpu_s for a, b in pairs], AT_LEAST))
    slower = [a.cpu_s / b.cpu_s for a, b in zip(costs["fp8"], exact, strict=True)]
    rows.append(Row.of("fp8 / exact, processor time", "x", slower))
    for name in step.ours:
        distance = float((logits[name] - logits[THEIRS]).abs().max() / logits[THEIRS].abs().max())
        rows.append(Row.of(f"{name}, largest difference of logits", "", [distance], "relative"))
    return rows


def _memory(loaded: LoadedModel) -> list[Row]:
    step = _step(loaded, MEMORY_LEN)
    peaks = {name: peak_bytes(logits) / 2**20 for name, logits in _all(loaded, step).items()}
    share = {name: 100 * peaks[name] / peaks[THEIRS] for name in step.ours}
    return [
        *(
            Row.of(f"{name}, beside the cache at {MEMORY_LEN:,}", "MiB", [peak])
            for name, peak in peaks.items()
        ),
        *(Row.of(f"{name} / transformers", "%", [part], "at most 2") for name, part in share.items()),
        *(
            Row.of(f"{name}, cache of a token and layer", "B", [size])
            for name, size in step.token_bytes.items()
        ),
    ]


def _all(loaded: LoadedModel, step: Step) -> dict[str, Callable[[], Tensor]]:
    """Return the step by name of who computes it; each sets the model's attention for itself."""

    def run(implementation: str, logits: Callable[[], Tensor]) -> Callable[[], Tensor]:
        def prepared() -> Tensor:
            set_implementation(loaded.module, implementation)
            return logits()

        return prepared

    return {name: run(IMPLEMENTATION, ours) for name, ours in step.ours.items()} | {
        THEIRS: run("sdpa", step.theirs)
    }


def _load(directory: Path) -> LoadedModel:
    """Return a random model with the latents of DeepSeek-V2-Lite and few, small layers."""
    torch.manual_seed(0)
    config = transformers.DeepseekV3Config(
        vocab_size=1024,
        hidden_size=512,
        intermediate_size=1024,
        num_hidden_layers=2,
        first_k_dense_replace=2,
        num_attention_heads=16,
        num_key_value_heads=16,
        q_lora_rank=None,
        max_position_embeddings=2 * MEMORY_LEN,
        eos_token_id=None,
        **LATENT_SIZES,
    )
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(directory)
    return load_model(directory, "float32", torch.device("cpu"))


def _step(loaded: LoadedModel, length: int) -> Step:
    """Return a step whose last token stands behind `length - 1` random latents, the same for everybody."""
    served = choose_route(loaded)
    (group,) = served.groups
    rank, rope_dim = LATENT_SIZES["kv_lora_rank"], LATENT_SIZES["qk_rope_head_dim"]
    past = {layer: torch.randn(length - 1, rank + rope_dim) for layer in group.layers}
    cache = transformers.DynamicCache()
    for layer, rows in past.items():
        cache.update(rows[None, None, :, :rank].clone(), rows[None, None, :, rank:].clone(), layer)
    forms = {name: stored_groups(served.groups, name, BLOCK_SIZE) for name in ("exact", "fp8")}

    @torch.inference_mode()
    def theirs() -> Tensor:
        position = torch.tensor([[length - 1]])
        out = loaded.module(input_ids=torch.tensor([[5]]), position_ids=position, past_key_values=cache)
        cache.crop(-1)
        logits: Tensor = out.logits[0]
        return logits

    return Step(
        ours={name: _ours(replace(served, groups=groups), past, length) for name, groups in forms.items()},
        theirs=theirs,
        token_bytes={name: groups[0].spec.token_bytes for name, groups in forms.items()},
    )


def _ours(served: ModelPlan, past: Mapping[int, Tensor], length: int) -> Callable[[], Tensor]:
    """Return the step on a pool that holds these rows [length - 1, R + d_r] of each layer."""
    (group,) = served.groups
    num_blocks = -(-length // BLOCK_SIZE)
    pool = DevicePool(served.groups, {group.id: num_blocks}, BLOCK_SIZE, torch.device("cpu"))
    for layer, rows in past.items():
        if isinstance(group.spec, Fp8LatentSpec):
            rank = group.spec.rank
            rows = pack(rows[:, :rank], rows[:, rank:], group.spec.record)
        pool.layers[layer].keys.flatten(0, 2)[: length - 1] = rows
    table = TableChange(SequenceId(1), group.id, 0, tuple(map(BlockId, range(num_blocks))))
    chunk = Chunk(RequestId(1), SequenceId(1), length - 1, (5,), samples=True)

    def ours() -> Tensor:
        builders = metadata_builders(served.groups, BLOCK_SIZE)
        runner = Runner(served.make_pass(pool), builders)  # takes the model over
        return runner.run(Batch(chunks=(chunk,), moves=(), changes=(table,), dropped=()))

    return ours
