"""Cache formats: their errors beside the bounds, attention and decoding beside the exact cache, converting.

Numbers are normal, or have four channels of 128 that stand apart. Attention reads keys and values that lie in
no cache: six layers in turn. Formats take turns within a round, so ratios are of one moment. Decoding is a
step of a model with 32 layers of random weights, 360 million, behind 16,384 tokens.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import torch
from torch import Tensor

from benchmarks.clock import cost_of
from benchmarks.random_llama import write_random_chat
from benchmarks.table import Row
from kvchat.engine.api.config import EngineConfig
from kvchat.engine.api.ids import BlockId, GroupId
from kvchat.engine.forward.fused_check import fused_pass, fusion_of
from kvchat.engine.forward.runner import ForwardPass
from kvchat.engine.kernels.paged_attention import paged_attention
from kvchat.engine.kernels.paged_attention.args import AttentionArgs, KVPair, SequenceSpan
from kvchat.engine.kernels.quantized_attention import quantize_blocks, quantized_attention
from kvchat.engine.kernels.quantized_attention.args import QuantizedPool, QuantizedStep
from kvchat.engine.kernels.quantized_kv.reference import dequantize, quantize
from kvchat.engine.kernels.quantized_record import Code, QuantizedRecord, num_quantized
from kvchat.engine.memory.device_pool import DevicePool
from kvchat.engine.models.linear.packed import pack_linears
from kvchat.engine.quality.convert import RUN_LEN, Converter, load_exact
from kvchat.engine.quality.replay import Replay, ReplaySize
from kvchat.engine.startup.weights import Candidate, groups_in

BLOCK_SIZE = 64
CONTEXT_LEN = 16384
CONVERTED_LEN = 4096
NUM_LAYERS = 6
SHAPES = ((15, 5, 64), (32, 8, 128), (14, 2, 64))
"""Query heads, key-value heads, head size."""
CODES = {
    "int8": (Code.INT8, Code.INT8),
    "fp8": (Code.FP8, Code.FP8),
    "k=int8,v=int4": (Code.INT8, Code.INT4),
    "int4": (Code.INT4, Code.INT4),
    "int2": (Code.INT2, Code.INT2),
}
"""Cache format → codes of keys and of values."""
BOUNDS = (
    ("fp8", Code.FP8, False, 0.034, 0.034, 8.3),
    ("int8", Code.INT8, False, 0.009, 0.020, 8.3),
    ("int4 keys", Code.INT4, True, 0.10, 0.05, 5.1),
    ("int4 values", Code.INT4, False, 0.10, 0.15, 5.1),
    ("int2 keys", Code.INT2, True, 0.51, 0.23, 3.1),
)
"""Name, code, whether by channel; most relative error of normal numbers, and with outliers; most bits."""


def measure(*, quick: bool = False) -> list[Row]:
    rounds = 3 if quick else 15
    torch.set_num_threads(1)
    rows = [*_errors(), *_attention(SHAPES[:1] if quick else SHAPES, rounds)]
    with TemporaryDirectory() as directory:
        model_dir = write_random_chat(Path(directory))
        _lengthen(model_dir)
        config = EngineConfig(device="cpu", block_size=BLOCK_SIZE, threads=1)
        candidate = load_exact(model_dir, config)
        pack_linears(candidate.loaded.module)  # as engines do
        rows += _converting(candidate, config, 2 if quick else 5)
        rows += _decoding(candidate, 3 if quick else 10)
    return rows


# Errors


def _errors() -> Iterator[Row]:
    generator = torch.Generator().manual_seed(1)
    for name, code, is_by_channel, bound, outlier_bound, most_bits in BOUNDS:
        record = QuantizedRecord(code, BLOCK_SIZE, 128, is_by_channel)
        for kind, most in (("normal", bound), ("outliers", outlier_bound)):
            errors = []
            for _ in range(4):
                numbers = torch.randn(8, 4, BLOCK_SIZE, 128, generator=generator)
                if kind == "outliers":
                    numbers[..., [3, 40, 77, 101]] += torch.tensor([12.0, -9.0, 15.0, 8.0])
                found = dequantize(quantize(numbers, record), record)
                errors.append(float((found - numbers).norm() / numbers.norm()))
            verdict = "holds" if max(errors) <= most else "IS BROKEN"
            yield Row.of(f"error of {name}, {kind}", "relative", errors, f"bound {most} {verdict}")
        bits = [8 * record.num_bytes / (record.num_tokens * record.dim)]
        yield Row.of(f"bits of {name}, head size 128", "bits", bits, f"bound {most_bits}")


# Attention


@dataclass(frozen=True, slots=True)
class _Way:
    name: str
    run: Callable[[], None]


def _attention(shapes: Sequence[tuple[int, int, int]], rounds: int) -> Iterator[Row]:
    for num_heads, num_kv_heads, dim in shapes:
        ways = [
            _exact_way(num_heads, num_kv_heads, dim),
            *(_quantized_way(name, num_heads, num_kv_heads, dim) for name in CODES),
        ]
        what = f"attention, {num_heads} heads on {num_kv_heads} of {dim}"
        yield from _side_by_side(what, ways, rounds)


def _side_by_side(what: str, ways: Sequence[_Way], rounds: int) -> Iterator[Row]:
    """Measure ways in turn; the first is what the others are compared with, round by round."""
    times: dict[str, list[float]] = {way.name: [] for way in ways}
    for way in ways:
        way.run()
    for _ in range(rounds):
        for way in ways:
            times[way.name].append(min(cost_of(way.run).cpu_s for _ in range(2)))
    first = ways[0].name
    for way in ways:
        ratios = [exact / own for exact, own in zip(times[first], times[way.name], strict=True)]
        best = min(times[first]) / min(times[way.name])
        note = "" if way.name == first else f"{median(ratios):.2f} x as fast; best against best {best:.2f} x"
        yield Row.of(f"{what}: {way.name}", "ms", [1e3 * time for time in times[way.name]], note)


def _exact_way(num_heads: int, num_kv_heads: int, dim: int) -> _Way:
    num_blocks = CONTEXT_LEN // BLOCK_SIZE
    layers = [
        (*(_random(num_blocks, num_kv_heads, dim) for _ in "kv"), torch.randperm(num_blocks))
        for _ in range(NUM_LAYERS)
    ]
    query = torch.randn(1, num_heads, dim).bfloat16()

    def run() -> None:
        for keys, values, blocks in layers:
            paged_attention(query, keys, values, _args(dim, 0, blocks))

    return _Way("exact, bfloat16", run)


def _quantized_way(name: str, num_heads: int, num_kv_heads: int, dim: int) -> _Way:
    num_blocks = num_quantized(CONTEXT_LEN - 1, BLOCK_SIZE)
    records = [
        QuantizedRecord(code, BLOCK_SIZE, dim, is_by_channel)
        for code, is_by_channel in zip(CODES[name], (True, False), strict=True)
    ]
    layers = []
    for _ in range(NUM_LAYERS):
        pools = [
            torch.zeros(num_blocks, num_kv_heads, 1, record.num_bytes, dtype=torch.uint8)
            for record in records
        ]
        quantized = QuantizedPool(pools[0], pools[1], records[0], records[1])
        every = torch.arange(num_blocks)
        exact = _random(num_blocks, num_kv_heads, dim), _random(num_blocks, num_kv_heads, dim)
        quantize_blocks(*exact, quantized, QuantizedStep((), every, every))
        recent = KVPair(_random(2, num_kv_heads, dim), _random(2, num_kv_heads, dim))
        nothing = torch.zeros(0, dtype=torch.long)
        layers.append((recent, quantized, QuantizedStep([torch.randperm(num_blocks)], nothing, nothing)))
    query = torch.randn(1, num_heads, dim).bfloat16()

    def run() -> None:
        for recent, quantized, step in layers:
            quantized_attention(query, recent, quantized, _args(dim, num_blocks, torch.arange(2)), step)

    return _Way(name, run)


def _random(num_blocks: int, num_kv_heads: int, dim: int) -> Tensor:
    return torch.randn(num_blocks, num_kv_heads, BLOCK_SIZE, dim).bfloat16()


def _args(dim: int, first_block: int, blocks: Tensor) -> AttentionArgs:
    span = SequenceSpan(0, 1, CONTEXT_LEN - 1, first_block, blocks)
    return AttentionArgs(spans=[span], softmax_scale=dim**-0.5)


# A model


def _lengthen(model_dir: Path) -> None:
    path = model_dir / "config.json"
    config = json.loads(path.read_text()) | {"max_position_embeddings": 2 * CONTEXT_LEN}
    path.write_text(json.dumps(config))


def _converting(candidate: Candidate, config: EngineConfig, rounds: int) -> Iterator[Row]:
    for name in ("int8", "int4"):
        converter = Converter(candidate, config, name)
        pool = converter.exact.pool
        for layer in pool.layers.values():
            layer.keys.normal_()
            layer.values.normal_()
        blocks = [
            {
                group.id: bytes(pool.read_block(group.id, BlockId(place), BLOCK_SIZE))
                for group in converter.exact.groups
            }
            for place in range(RUN_LEN)
        ]
        costs = [_conversion_s(converter, blocks) for _ in range(rounds)]
        note = "bytes of exact blocks to bytes of converted ones, one core; goal: 2 s on two"
        yield Row.of(f"converting {CONVERTED_LEN} tokens, 360 M weights, to {name}", "s", costs, note)


def _conversion_s(converter: Converter, blocks: Sequence[Mapping[GroupId, bytes]]) -> float:
    def convert() -> None:
        for _ in range(CONVERTED_LEN // BLOCK_SIZE // RUN_LEN):
            converter.convert(blocks, lambda group, place: True)

    return cost_of(convert).cpu_s


def _decoding(candidate: Candidate, rounds: int) -> Iterator[Row]:
    ways = []
    exact = _replay(candidate, "exact")
    for layer in exact.pool.layers.values():
        layer.keys.normal_()
        layer.values.normal_()
    for name in ("exact", "int8", "int4"):
        replay = exact if name == "exact" else _replay(candidate, name)
        if replay is not exact:
            replay.convert(exact, CONTEXT_LEN - 2)
        ways.append(_Way(name, _step(replay)))
    yield from _side_by_side("a decoded token, 360 M weights", ways, rounds)


def _replay(candidate: Candidate, cache_format: str) -> Replay:
    groups = groups_in(candidate.served, cache_format, BLOCK_SIZE)
    own = replace(candidate, served=replace(candidate.served, groups=groups))
    size = ReplaySize(max_len=CONTEXT_LEN, chunk_len=512, back_len=1, block_size=BLOCK_SIZE)

    def make_pass(pool: DevicePool) -> ForwardPass:
        """Fused where it can be, as an engine runs it."""
        return fused_pass(own.served, pool, fusion_of(own.loaded, own.served))[0]

    return Replay(make_pass, groups, size, torch.device("cpu"))


def _step(replay: Replay) -> Callable[[], None]:
    """Return a decoding step. Fused layers need not be behind the model's attention; what began last is.

    No block becomes old in the step: that happens in one of 64.
    """
    replay.begin()
    return lambda: _compute(replay)


def _compute(replay: Replay) -> None:
    replay.compute([7], CONTEXT_LEN - 2, 1)
