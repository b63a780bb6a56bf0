"""The native kernels' reading speed, beside a sum's on this machine, plain torch, and torch's own attention.

Keys, values and weights are cold: each call reads others, more than any cache holds. A round takes the best
of a few bursts. One thread is measured by the processor's time, so that neighbours on its core count little;
more of them by the clock.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.clock import cost_of
from benchmarks.table import NothingHere, Row
from kvchat.engine.kernels.linear import can_pack, pack
from kvchat.engine.kernels.linear import linear as packed_linear
from kvchat.engine.kernels.native.library import library, why_not
from kvchat.engine.kernels.paged_attention import native, torch_fallback
from kvchat.engine.kernels.paged_attention.args import AttentionArgs, SequenceSpan
from kvchat.engine.kernels.quantized_linear import linear as quantized_linear
from kvchat.engine.kernels.quantized_linear import quantize, reference
from kvchat.engine.kernels.threads import usable_cores

ROUNDS = 5
BURSTS = 5
BLOCK_SIZE = 64
COLD_BYTES = 200 * 10**6
SHAPES = ((15, 5, 64), (32, 8, 128), (8, 1, 256))
"""Query heads, key-value heads, head size."""
LENGTHS = (512, 4096, 16384, 32768)
WEIGHT = (2560, 960)
NUM_ROWS = (1, 4, 8, 16)


@dataclass(frozen=True, slots=True)
class Way:
    """One way to compute something: reads `num_bytes` that lie in no cache."""

    name: str
    num_bytes: int
    run: Callable[[], object]


def measure(*, quick: bool = False) -> list[Row]:
    if library() is None:
        raise NothingHere(f"there are no native kernels here: {why_not()}")
    num_rounds = 2 if quick else ROUNDS
    torch.set_num_threads(usable_cores())
    big = torch.ones(COLD_BYTES // 4)
    rows = []
    for ways in _subjects(quick):
        rates: dict[str, list[float]] = {way.name: [] for way in ways}
        reads = []
        for _ in range(num_rounds):
            reads.append(_rate(Way("", big.nbytes, lambda: big.sum())))
            for way in ways:
                rates[way.name].append(_rate(way))
        first = ways[0].name
        shares = [100 * rate / read for rate, read in zip(rates[first], reads, strict=True)]
        rows += [Row.of(name, "GB/s", values) for name, values in rates.items()]
        rows.append(Row.of(f"{first}: share of a sum's", "%", shares, "a sum in this run reads at 100"))
    return rows


def _rate(way: Way) -> float:
    way.run()
    costs = [cost_of(way.run) for _ in range(BURSTS)]
    is_alone = torch.get_num_threads() == 1
    return way.num_bytes / min(cost.cpu_s if is_alone else cost.wall_s for cost in costs) / 1e9


@torch.inference_mode()
def _subjects(quick: bool) -> Iterator[Sequence[Way]]:
    for shape in SHAPES[:1] if quick else SHAPES:
        for length in LENGTHS[:2] if quick else LENGTHS:
            yield list(_attention(shape, length))
    for num_rows in NUM_ROWS:
        yield list(_quantized(8, num_rows))
        yield list(_quantized(4, num_rows))
        if can_pack(torch.empty(WEIGHT, dtype=torch.bfloat16)):
            yield [_packed(num_rows)]


def _attention(shape: tuple[int, int, int], length: int) -> Iterator[Way]:
    """Yield one token's attention in bfloat16, with blocks in random order; torch's own gets whole rows."""
    num_heads, num_kv_heads, dim = shape
    num_blocks = -(-length // BLOCK_SIZE)
    pool_bytes = 2 * num_blocks * BLOCK_SIZE * num_kv_heads * dim * 2
    num_layers = max(2, COLD_BYTES // pool_bytes)
    size = (num_blocks, num_kv_heads, BLOCK_SIZE, dim)
    pools = [torch.randn(2, *size).bfloat16() for _ in range(num_layers)]
    query = torch.randn(1, num_heads, dim).bfloat16()
    spans = [SequenceSpan(0, 1, length - 1, 0, torch.randperm(num_blocks))]
    table = AttentionArgs(spans, dim**-0.5, prepared=native.span_table(spans))
    listed = AttentionArgs(spans, dim**-0.5)
    rows = [pool.view(2, 1, num_kv_heads, -1, dim) for pool in pools]
    name = f"{num_heads} heads on {num_kv_heads} of {dim}, {length:,} tokens"
    num_bytes = num_layers * 2 * length * num_kv_heads * dim * 2

    def all_of(attend: Callable[[Tensor], Tensor], layers: Sequence[Tensor]) -> Callable[[], None]:
        def run() -> None:
            for layer in layers:
                attend(layer)

        return run

    yield Way(name, num_bytes, all_of(lambda kv: native.paged_attention(query, kv[0], kv[1], table), pools))
    few = max(1, num_layers // 8)  # slow ways need not read all of it
    yield Way(
        f"{name}: plain torch",
        num_bytes * few // num_layers,
        all_of(lambda kv: torch_fallback.paged_attention(query, kv[0], kv[1], listed), pools[:few]),
    )
    yield Way(
        f"{name}: sdpa",
        num_bytes * few // num_layers,
        all_of(lambda kv: _sdpa(query.transpose(0, 1)[None], kv), rows[:few]),
    )


def _sdpa(query: Tensor, layer: Tensor) -> Tensor:
    return functional.scaled_dot_product_attention(query, layer[0], layer[1], enable_gqa=True)


def _quantized(bits: int, num_rows: int) -> Iterator[Way]:
    weight = quantize(torch.randn(WEIGHT), bits)
    num = COLD_BYTES // weight.nbytes
    weights = [replace(weight, codes=weight.codes.clone(), scales=weight.scales.clone()) for _ in range(num)]
    x = torch.randn(num_rows, WEIGHT[1]).bfloat16()
    name = f"int{bits} weights, {num_rows} rows"

    def ours() -> None:
        for one in weights:
            quantized_linear(x, one, None)

    def plain() -> None:
        for one in weights[: num // 20]:
            reference.linear(x, one, None)

    yield Way(name, num * weight.nbytes, ours)
    yield Way(f"{name}: plain torch", num // 20 * weight.nbytes, plain)


def _packed(num_rows: int) -> Way:
    num = COLD_BYTES // (2 * WEIGHT[0] * WEIGHT[1])
    weights = [pack(torch.randn(WEIGHT).bfloat16()) for _ in range(num)]
    x = torch.randn(num_rows, WEIGHT[1]).bfloat16()

    def run() -> None:
        for weight in weights:
            packed_linear(x, weight, None)

    return Way(f"bfloat16 weights in oneDNN's order, {num_rows} rows", num * 2 * WEIGHT[0] * WEIGHT[1], run)
