"""A decode step of latent attention over a long context, beside transformers on the same latents."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
import transformers
from torch import Tensor

from benchmarks.table import Row, seconds
from kvchat.engine.activation import peak_bytes
from kvchat.engine.api.ids import BlockId, BranchId, RequestId
from kvchat.engine.batch import Batch, Chunk
from kvchat.engine.cache.plan import TableChange
from kvchat.engine.memory.device_pool import DevicePool
from kvchat.engine.models.hook import IMPLEMENTATION, set_implementation
from kvchat.engine.models.load import LoadedModel, load_model
from kvchat.engine.route import choose_route
from kvchat.engine.runner import Runner

ROUNDS = 5
BLOCK_SIZE = 64
SPEED_LEN = 16_384
MEMORY_LEN = 32_768
LATENT_SIZES = {"kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128}


@dataclass(frozen=True, slots=True)
class Step:
    """The same decode step of both: the last of so many tokens, on the same latents."""

    ours: Callable[[], Tensor]
    theirs: Callable[[], Tensor]


def measure() -> list[Row]:
    transformers.utils.logging.set_verbosity_error()
    with TemporaryDirectory() as directory:
        loaded = _load(Path(directory))
    step = _step(loaded, SPEED_LEN)
    ours, theirs = [], []
    for _ in range(ROUNDS):
        set_implementation(loaded.module, IMPLEMENTATION)
        ours.append(1e3 * seconds(step.ours))
        set_implementation(loaded.module, "sdpa")
        theirs.append(1e3 * seconds(step.theirs))
    return [
        Row.of(f"kvchat, one token at {SPEED_LEN:,}", "ms", ours),
        Row.of("transformers, the same", "ms", theirs),
        Row.of("ratio", "x", [b / a for a, b in zip(ours, theirs, strict=True)], "at least 5"),
        *_agreement(loaded, step),
        *_memory(loaded),
    ]


def _agreement(loaded: LoadedModel, step: Step) -> list[Row]:
    set_implementation(loaded.module, IMPLEMENTATION)
    ours = step.ours()
    set_implementation(loaded.module, "sdpa")
    theirs = step.theirs()
    distance = float((ours - theirs).abs().max() / theirs.abs().max())
    return [Row.of("largest difference of the logits, relative", "", [distance])]


def _memory(loaded: LoadedModel) -> list[Row]:
    step = _step(loaded, MEMORY_LEN)
    set_implementation(loaded.module, IMPLEMENTATION)
    ours = peak_bytes(step.ours) / 2**20
    set_implementation(loaded.module, "sdpa")
    theirs = peak_bytes(step.theirs) / 2**20
    return [
        Row.of(f"kvchat, transient memory of a step at {MEMORY_LEN:,}", "MiB", [ours]),
        Row.of("transformers, the same", "MiB", [theirs]),
        Row.of("share", "%", [100 * ours / theirs], "at most 2"),
    ]


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
    """Return a step whose last token stands behind `length - 1` random latents."""
    module = loaded.module
    served = choose_route(loaded)
    (group,) = served.groups
    num_blocks = -(-length // BLOCK_SIZE)
    pool = DevicePool(served.groups, {group.id: num_blocks}, BLOCK_SIZE, torch.device("cpu"))
    rank = LATENT_SIZES["kv_lora_rank"]
    cache = transformers.DynamicCache()
    for layer in group.layers:
        rows = pool.layers[layer].keys.normal_().view(-1, pool.layers[layer].keys.shape[3])
        past = rows[None, None, : length - 1]
        cache.update(past[..., :rank].clone(), past[..., rank:].clone(), layer)
    runner = Runner(served.make_pass(pool), served.groups, BLOCK_SIZE)
    table = TableChange(BranchId(1), group.id, 0, tuple(map(BlockId, range(num_blocks))))
    chunk = Chunk(RequestId(1), BranchId(1), length - 1, (5,), samples=True)

    def ours() -> Tensor:
        return runner.run(Batch(chunks=(chunk,), moves=(), changes=(table,), dropped=()))

    @torch.inference_mode()
    def theirs() -> Tensor:
        position = torch.tensor([[length - 1]])
        out = module(input_ids=torch.tensor([[5]]), position_ids=position, past_key_values=cache)
        cache.crop(-1)
        logits: Tensor = out.logits[0]
        return logits

    return Step(ours, theirs)
