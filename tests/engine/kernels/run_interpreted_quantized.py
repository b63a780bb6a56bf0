"""Runs attention over quantized blocks under the Triton interpreter against its definition.

A program of its own, as `run_interpreted`; prints one JSON line per case, with the error as a multiple of
what is allowed. What no query may see is NaN, exact or quantized, and tables are in an order by chance.
"""

import os
import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

os.environ["TRITON_INTERPRET"] = "1"

import torch
from torch import Tensor

from kvchat.engine.kernels.kernel_checks import largest_error
from kvchat.engine.kernels.paged_attention.step_tables import step_tables
from kvchat.engine.kernels.quantized_attention import reference, torch_capturable
from kvchat.engine.kernels.quantized_attention import triton as kernels
from kvchat.engine.kernels.quantized_attention.args import QuantizedStep
from kvchat.engine.kernels.quantized_kv.reference import quantize
from kvchat.engine.kernels.quantized_record import Code
from tests.engine.kernels.attention_cases import filled_up
from tests.engine.kernels.interpreted import CONTROL, tell
from tests.engine.kernels.quantized_cases import QuantizedCase, QuantizedShape, make_quantized_case

TOLERANCE = {torch.float32: 1e-5, torch.float16: 4e-3}
NOTHING = torch.zeros(0, dtype=torch.long)
CHUNKS = ((1, 1), (47, 47), (65, 5), (130, 3))
"""Tokens of each sequence, and how many of the last have queries."""


def error_of(shape: QuantizedShape, sequences: Sequence[tuple[int, int]], part_len: int = 64) -> float:
    """Return the worst error over a case's result, relative to the tolerance of its dtype."""
    kernels.PART_LEN = part_len
    case = make_quantized_case(shape, sequences)
    return largest_error(computed(case), defined(case)) / TOLERANCE[shape.dtype]


def parts_error() -> float:
    """The number of parts changes the result by rounding alone."""
    shape = QuantizedShape(key_code=Code.INT4, value_code=Code.INT4)
    return max(error_of(shape, ((130, 1),), part_len) for part_len in (512, 33))


def neighbours_error() -> float:
    """A sequence alone gets the very bits that it gets in a batch; infinite if not."""
    kernels.PART_LEN = 32
    case = make_quantized_case(QuantizedShape(value_code=Code.INT4), ((63, 1), (130, 1)))
    together = computed(case)
    for span, old in zip(case.args.spans, case.blocks, strict=True):
        args = replace(case.args, spans=[replace(span, q_start=0, q_end=1)])
        alone = replace(case, query=case.query[span.q_start : span.q_end], args=args, blocks=[old])
        if not torch.equal(computed(alone)[0], together[span.q_start]):
            return float("inf")
    return 0.0


def padding_error() -> float:
    """Rows without a query and tables with room for more, as recorded steps have them, change no bit; and the
    plain operations that stand in compute the same.
    """
    kernels.PART_LEN = 32
    case = make_quantized_case(
        QuantizedShape(key_code=Code.FP8, value_code=Code.INT2), ((1, 1), (65, 1), (130, 1))
    )
    wanted = computed(case)
    known = step_tables(case.args.spans, case.args.first_visible)
    old = QuantizedStep(case.blocks, NOTHING, NOTHING).padded()
    for num_empty, num_wider in ((0, 0), (2, 4)):
        query = torch.cat([case.query, torch.full_like(case.query[:num_empty], float("nan"))])
        tables = filled_up(known, len(query), known.most_visible)
        room = torch.full((len(query), old.shape[1] + num_wider), 2_147_480_000, dtype=torch.int32)
        for row, own in enumerate(case.blocks):
            room[row, : len(own)] = own
        args = replace(case.args, spans=(), prepared=tables)
        step = QuantizedStep((), NOTHING, NOTHING, room)
        got = kernels.quantized_attention(query, case.pools, case.quantized, args, step)
        if not torch.equal(got[: len(wanted)], wanted) or got[len(wanted) :].any():
            return float("inf")
    args = replace(case.args, spans=(), prepared=known)
    plain = torch_capturable.quantized_attention(case.query, case.pools, case.quantized, args, old)
    return largest_error(plain, wanted) / TOLERANCE[torch.float32]


def largest_numbers_error() -> float:
    """The largest numbers of float16 stay what they are, though a scale of theirs is rounded up."""
    worst = 0.0
    for code in (Code.INT8, Code.INT4):
        shape = QuantizedShape(num_kv_heads=1, key_code=code, value_code=code, dtype=torch.float16)
        case = make_quantized_case(shape, ((64, 1),))
        values = torch.full((1, 1, 16, 16), 65504.0)
        values[:, :, ::2] = -65504.0
        for old in case.blocks[0]:
            case.quantized.values[old, :, 0] = quantize(values[0][None], case.quantized.value_record)[0]
        case.pools[1][:] = 0
        got, wanted = computed(case), defined(case)
        worst = max(worst, largest_error(got / 65504, wanted / 65504) / TOLERANCE[torch.float16])
    return worst


def control_error(name: str) -> float:
    """Attention on other blocks than those of the definition."""
    case = make_quantized_case(QuantizedShape(), ((130, 1),))
    span, old = case.args.spans[0], case.blocks[0]
    if name.endswith("a block twice"):
        changed = replace(case, blocks=[torch.cat([old[:1], old[:-1]])])
    elif name.endswith("a key too few"):
        changed = replace(case, args=replace(case.args, spans=[replace(span, position=128)]))
    else:
        unused = sorted({*range(len(case.quantized.keys))} - {*old.tolist()})
        changed = replace(case, blocks=[torch.cat([torch.tensor(unused[:1]), old[1:]])])
    return largest_error(computed(changed), defined(case)) / TOLERANCE[torch.float32]


def computed(case: QuantizedCase) -> Tensor:
    step = QuantizedStep(case.blocks, NOTHING, NOTHING)
    return kernels.quantized_attention(case.query, case.pools, case.quantized, case.args, step)


def defined(case: QuantizedCase) -> Tensor:
    return reference.quantized_attention(*case.arguments)


def _shape(key: Code, value: Code, **sizes: object) -> QuantizedShape:
    return QuantizedShape(key_code=key, value_code=value, **sizes)  # type: ignore[arg-type]


FP8, INT8, INT4, INT2 = Code.FP8, Code.INT8, Code.INT4, Code.INT2
HALF = {"dtype": torch.float16}
LONG = ((130, 1),)
CASES: dict[str, Callable[[], float]] = {
    "single queries, int8": partial(error_of, _shape(INT8, INT8, num_heads=8), ((63, 1), (64, 1), (65, 1))),
    "single queries, fp8": partial(error_of, _shape(FP8, FP8, num_heads=6), LONG),
    "single queries, int4": partial(
        error_of, _shape(INT4, INT4, block_size=32, head_dim_k=24, head_dim_v=40), LONG
    ),
    "single queries, int2": partial(error_of, _shape(INT2, INT2, block_size=32), LONG),
    "single queries, fp8 and int4, float16": partial(
        error_of, _shape(FP8, INT4, num_kv_heads=1, block_size=64, **HALF), ((193, 1),)
    ),
    "single queries, int4 and int8, float16": partial(
        error_of, _shape(INT4, INT8, num_kv_heads=1, head_dim_k=64, head_dim_v=64, **HALF), LONG
    ),
    "single queries, soft cap and sinks": partial(
        error_of, _shape(INT8, INT2, softcap=2.0, has_sinks=True), ((1, 1), (130, 1))
    ),
    "tokens that are no whole words": partial(
        error_of, _shape(INT2, INT8, block_size=5, head_dim_k=20, head_dim_v=33), ((33, 1),), 16
    ),
    "groups over two turns": partial(
        error_of, _shape(INT4, INT4, num_kv_heads=1, block_size=100), ((230, 1),), 512
    ),
    "heads in several pieces, int8": partial(error_of, _shape(INT8, INT8, head_dim_k=80), ((65, 1),)),
    "heads in several pieces, int4": partial(error_of, _shape(INT4, INT8, head_dim_k=128), CHUNKS),
    "chunks, int8": partial(error_of, _shape(INT8, INT8), CHUNKS),
    "chunks, int4 and int2, sinks": partial(
        error_of, _shape(INT4, INT2, has_sinks=True), ((65, 5), (130, 3))
    ),
    "chunks, fp8 and int4, float16": partial(
        error_of, _shape(FP8, INT4, num_kv_heads=1, softcap=1.5, **HALF), ((130, 3),)
    ),
    "the largest numbers of float16": largest_numbers_error,
    "parts": parts_error,
    "neighbours": neighbours_error,
    "padding": padding_error,
}
CONTROLS = tuple(
    f"{CONTROL}a {name}" for name in ("block twice", "key too few", "block that nobody may read")
)


if __name__ == "__main__":
    # The interpreter computes with numpy, which warns about the infinities of keys that nobody sees.
    warnings.simplefilter("ignore", RuntimeWarning)
    names = sys.argv[1:] or (*CASES, *CONTROLS)
    tell(names, lambda name: control_error(name) if name in CONTROLS else CASES[name]())
