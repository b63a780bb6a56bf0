"""A whole decode step by fused layers, beside a sum of the same bytes and beside the model's own layers.

The shape is a Llama of 360 M with random weights, of which no cache holds a tenth. A round takes the best of
a few steps. One thread is measured by the processor's time, so that neighbours on its core count little; more
of them by the clock.
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch
import transformers
from torch import Tensor

from benchmarks.clock import cost_of
from benchmarks.table import NothingHere
from benchmarks.table import Row as Figure
from kvchat.engine.formats.attention_metadata import AttentionMetadata
from kvchat.engine.forward.fused_check import fuse
from kvchat.engine.forward.model_route import ModelPlan, choose_route
from kvchat.engine.forward.runner import InputBatch
from kvchat.engine.kernels.native.library import library, why_not
from kvchat.engine.kernels.paged_attention import prepare
from kvchat.engine.kernels.paged_attention.args import SequenceSpan
from kvchat.engine.kernels.threads import usable_cores
from kvchat.engine.memory.device_pool import DevicePool
from kvchat.engine.models.linear.packed import pack_linears
from kvchat.engine.models.linear.quantized import quantize_linears
from kvchat.engine.models.load import LoadedModel

ROUNDS = 5
BURSTS = 6
BLOCK_SIZE = 64
BITS = (16, 8, 4)
LENGTHS = (512, 4096)
BATCHES = (1, 8)
NUM_LAYERS = 32
VOCAB_SIZE = 49152


def measure(*, quick: bool = False) -> list[Figure]:
    if library() is None:
        raise NothingHere(f"there are no native kernels here: {why_not()}")
    torch.set_num_threads(usable_cores())
    figures: list[Figure] = []
    for bits in BITS:
        loaded = _load(bits)
        served = choose_route(loaded)
        pack_linears(loaded.module)
        for length in LENGTHS[:1] if quick else LENGTHS:
            for batch in BATCHES:
                figures += _figures(bits, loaded, served, length, batch, 2 if quick else ROUNDS)
    return figures


@torch.inference_mode()
def _figures(
    bits: int, loaded: LoadedModel, served: ModelPlan, length: int, batch: int, num_rounds: int
) -> Iterator[Figure]:
    name = f"{bits} bits, {length:,} tokens x {batch}"
    num_blocks = batch * (length // BLOCK_SIZE + 1)
    pool = DevicePool(
        served.groups, {group.id: num_blocks for group in served.groups}, BLOCK_SIZE, torch.device("cpu")
    )
    for layer in pool.layers.values():
        layer.keys.normal_()
        layer.values.normal_()
    own = served.make_pass(pool)
    row = _row(served, length, batch)
    own_ms = [_best_ms(lambda: own.logits(row)) for _ in range(2)]
    fused = fuse(loaded, served.groups).stand_before(served.make_pass(pool), pool)
    same_bytes = torch.ones(_num_bytes(loaded, pool, length, batch) // 4)
    fused_ms, sum_ms = [], []
    for _ in range(num_rounds):
        sum_ms.append(_best_ms(lambda: same_bytes.sum()))
        fused_ms.append(_best_ms(lambda: fused.logits(row)))
    shares = [100 * bound / found for bound, found in zip(sum_ms, fused_ms, strict=True)]
    yield Figure.of(f"{name}: fused", "ms", fused_ms)
    yield Figure.of(f"{name}: own layers", "ms", own_ms)
    yield Figure.of(f"{name}: share of a sum's", "%", shares, "a sum of the same bytes in this run is 100")


def _best_ms(action: Callable[[], Tensor]) -> float:
    action()
    costs = [cost_of(action) for _ in range(BURSTS)]
    is_alone = torch.get_num_threads() == 1
    return 1e3 * min(cost.cpu_s if is_alone else cost.wall_s for cost in costs)


def _load(bits: int) -> LoadedModel:
    config = transformers.LlamaConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=960,
        intermediate_size=2560,
        num_hidden_layers=NUM_LAYERS,
        num_attention_heads=15,
        num_key_value_heads=5,
        max_position_embeddings=8192,
        tie_word_embeddings=True,
    )
    torch.manual_seed(0)
    module: Any = transformers.AutoModelForCausalLM.from_config(
        config, dtype=torch.bfloat16, attn_implementation="eager"
    )
    module.eval().requires_grad_(False)
    if bits < 16:
        with torch.inference_mode():
            list(quantize_linears(module, bits))
    return LoadedModel(
        module=module,
        dtype="bfloat16",
        vocab_size=VOCAB_SIZE,
        num_layers=NUM_LAYERS,
        max_context=8192,
        eos_token_ids=frozenset(),
    )


def _row(served: ModelPlan, length: int, batch: int) -> InputBatch:
    """Return a step of one token behind `length` others in each sequence, blocks in random order."""
    num_blocks = length // BLOCK_SIZE + 1
    tables = torch.randperm(batch * num_blocks).view(batch, num_blocks)
    spans = [SequenceSpan(number, number + 1, length, 0, table) for number, table in enumerate(tables)]
    slots = tables[:, -1] * BLOCK_SIZE + length % BLOCK_SIZE
    return InputBatch(
        token_ids=torch.randint(1, VOCAB_SIZE, (batch,)),
        positions=torch.full((batch,), length),
        groups={
            group.id: AttentionMetadata(slots, spans, prepare(spans, group.spec.first_visible))
            for group in served.groups
        },
        sampling=torch.arange(batch),
    )


def _num_bytes(loaded: LoadedModel, pool: DevicePool, length: int, batch: int) -> int:
    """Return what a step has to read: weights but for the embedding, keys and values."""
    module: Any = loaded.module
    weights = loaded.weight_bytes - module.get_input_embeddings().weight.nbytes
    token_bytes = pool.num_bytes // sum(layer.keys.shape[0] * BLOCK_SIZE for layer in pool.layers.values())
    return weights + batch * length * token_bytes * NUM_LAYERS
