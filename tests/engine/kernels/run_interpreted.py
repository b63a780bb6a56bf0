"""Runs kernels under the Triton interpreter against their references and prints one JSON line per case.

A program of its own: the interpreter is chosen when Triton is imported, and a kernel that reads out of bounds
ends the process. The interpreter computes bfloat16 wrongly, so cases are float32 and float16.
"""

import os
import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

os.environ["TRITON_INTERPRET"] = "1"

import torch
from torch import Tensor

from kvchat.engine.kernels.fp8_record import Fp8Record
from kvchat.engine.kernels.kernel_checks import largest_error
from kvchat.engine.kernels.latent_attention import reference as latent_reference
from kvchat.engine.kernels.latent_attention import torch_capturable as latent_torch_capturable
from kvchat.engine.kernels.latent_attention import torch_fallback as latent_ops
from kvchat.engine.kernels.latent_attention import triton as latent_triton
from kvchat.engine.kernels.latent_record import reference as record_reference
from kvchat.engine.kernels.latent_record import triton as record_triton
from kvchat.engine.kernels.merge_lse import reference as merge_reference
from kvchat.engine.kernels.merge_lse import triton as merge_triton
from kvchat.engine.kernels.move_blocks import reference as move_reference
from kvchat.engine.kernels.move_blocks import triton as move_triton
from kvchat.engine.kernels.paged_attention import reference as attention_reference
from kvchat.engine.kernels.paged_attention import torch_capturable
from kvchat.engine.kernels.paged_attention import triton as attention_triton
from kvchat.engine.kernels.paged_attention.step_tables import step_tables
from kvchat.engine.kernels.rope_and_store import reference as rope_store_reference
from kvchat.engine.kernels.rope_and_store import triton as rope_store_triton
from kvchat.engine.kernels.rope_and_store.reference import RopeStore
from kvchat.engine.kernels.store_kv import reference as store_reference
from kvchat.engine.kernels.store_kv import triton as store_triton
from tests.engine.kernels import interpreted_edges as edges
from tests.engine.kernels.attention_cases import Case, Shape, filled_up, make_case
from tests.engine.kernels.interpreted import CONTROL, tell
from tests.engine.kernels.test_latent_attention import Problem, make_problem, packed, single

SPANS = ((0, 7), (100, 1), (3, 1), (50, 11), (0, 1), (63, 1), (64, 2))
"""Of latents; tokens before the queries, and queries, of sequences of one, two and three tiles."""
TOLERANCE = {torch.float32: 1e-5, torch.float16: 4e-3}
LENGTHS = (1, 63, 64, 65, 130)


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionCase:
    """One call: its sequences, dtype, and the keys of a part where queries stand alone."""

    shape: Shape
    lengths: tuple[int, ...] = LENGTHS
    dtype: torch.dtype = torch.float32
    part_len: int = 64


_DECODE = {"num_new": 1}
_CHUNK = {"num_new": 5}

ATTENTION_CASES = {
    "decode, grouped queries": AttentionCase(shape=Shape(num_heads=8, num_kv_heads=2, **_DECODE)),
    "decode, one key-value head, float16": AttentionCase(
        shape=Shape(num_kv_heads=1, block_size=64, **_DECODE), dtype=torch.float16
    ),
    "decode, window and sinks": AttentionCase(shape=Shape(window=37, has_sinks=True, **_DECODE), part_len=16),
    "decode, chunks": AttentionCase(shape=Shape(chunk=37, **_DECODE), part_len=16),
    "decode, soft cap, other size of values": AttentionCase(
        shape=Shape(softcap=2.0, head_dim_k=20, head_dim_v=12, block_size=5, **_DECODE)
    ),
    "decode, three heads a group": AttentionCase(shape=Shape(num_heads=6, num_kv_heads=2, **_DECODE)),
    "chunk, grouped queries": AttentionCase(shape=Shape(num_heads=8, num_kv_heads=2, **_CHUNK)),
    "chunk, window, sinks, soft cap": AttentionCase(
        shape=Shape(num_kv_heads=1, window=21, softcap=1.5, has_sinks=True, **_CHUNK)
    ),
    "chunk, chunks, blocks of five": AttentionCase(shape=Shape(chunk=21, block_size=5, **_CHUNK)),
    "prompts over several tiles, float16": AttentionCase(
        shape=Shape(block_size=64), lengths=(70, 1, 40), dtype=torch.float16
    ),
    "prompts, windows over blocks": AttentionCase(shape=Shape(window=37), lengths=(66, 3)),
}


def attention_error(called: AttentionCase) -> float:
    """Return the worst error over a case's result, relative to the tolerance of its dtype."""
    attention_triton.PART_LEN = called.part_len
    case = make_case(called.shape, called.lengths).to(called.dtype)
    got = attention_triton.paged_attention(*case.arguments)
    return largest_error(got, _attention_reference(case)) / TOLERANCE[called.dtype]


def latent_error() -> float:
    """Single queries and chunks, in one part of the context and in several."""
    problem = single(make_problem(SPANS))
    wanted = latent_reference.latent_attention(*problem)
    errors = []
    for part_len in (256, 32):
        latent_triton.PART_LEN = part_len
        errors.append(
            largest_error(latent_ops.latent_attention(*problem, latent_triton.mean_latents), wanted)
        )
    return max(errors) / TOLERANCE[torch.float32]


def records_error(*, part_lens: Sequence[int], by_bits: bool = False) -> float:
    """The same on 8-bit records, over ranks of a part of a tile and of one and a half.

    Args:
        part_lens: of the context, for each rank and type of numbers.
    """
    latent_triton.has_e4m3 = lambda pool: not by_bits
    worst = 0.0
    kinds = ((200, torch.float32), (200, torch.float16), (16, torch.float32))
    for (rank, dtype), part_len in zip(kinds, part_lens, strict=True):
        problem = packed(make_problem(SPANS, rank, value_scale=3.0), dtype)
        wanted = latent_reference.latent_attention(*problem)
        latent_triton.PART_LEN = part_len
        got = latent_ops.latent_attention(*problem, latent_triton.mean_latents)
        worst = max(worst, largest_error(got, wanted) / TOLERANCE[dtype])
    return worst


def store_records_error() -> float:
    """Records of all sizes of numbers are the reference's to the bit, and nothing else is written."""
    generator = torch.Generator().manual_seed(0)
    worst = 0.0
    for rank, rope_dim, dtype in ((512, 64, torch.float16), (200, 6, torch.float32), (7, 3, torch.float32)):
        record = Fp8Record(rank, rope_dim)
        sizes = torch.logspace(-9, 4, 40)[torch.randperm(40, generator=generator)]
        latents = (torch.randn(40, rank, generator=generator) * sizes[:, None]).to(dtype)
        edges = torch.tensor([0.0, -0.0, 448.0, -448.0, 2.0**-9, 1.5 * 2.0**-9, 0.5 * 2.0**-9])
        latents[3] = 0
        latents[4, :7] = edges.to(dtype)
        latents[5] = 449.0
        # The interpreter cuts bfloat16 off where others round it, so rope keys need no rounding here.
        rope_keys = torch.randn(40, rope_dim, generator=generator).bfloat16().to(dtype)
        pool = torch.randint(0, 256, (6, 1, 9, record.num_bytes), dtype=torch.uint8, generator=generator)
        wanted, slots = pool.clone(), torch.randperm(54, generator=generator)[:40]
        slots[7:9] = torch.tensor([54, 2**31 // record.num_bytes])  # of rows that only fill a batch up
        record_reference.store_records(latents, rope_keys, wanted, slots, record)
        padding = record.num_bytes - record.rope_at - 2 * rope_dim
        aside = rope_keys.repeat_interleave(2, dim=1)[:, ::2]  # the same, not in a row
        record_triton.store_records(latents, aside, pool, slots, record)
        end = record.num_bytes - padding
        gap = slice(record.rank, record.scales_at)
        pool[..., gap], wanted[..., gap] = 0, 0
        worst = max(worst, 0.0 if torch.equal(pool[..., :end], wanted[..., :end]) else float("inf"))
    return worst


def parts_error() -> float:
    """The number of parts changes the result by rounding alone."""
    case = make_case(Shape(head_dim_k=16, head_dim_v=16, num_new=1), LENGTHS).to(torch.float32)
    wanted = _attention_reference(case)
    errors = []
    for part_len in (512, 65, 33, 19):
        attention_triton.PART_LEN = part_len
        got = attention_triton.paged_attention(*case.arguments)
        errors.append(largest_error(got, wanted))
    return max(errors) / TOLERANCE[torch.float32]


def neighbours_error() -> float:
    """A sequence alone gets the very bits that it gets in a batch; infinite if not."""
    attention_triton.PART_LEN = 32
    case = make_case(Shape(num_new=1), LENGTHS).to(torch.float32)
    together = attention_triton.paged_attention(*case.arguments)
    for span in case.args.spans:
        alone = attention_triton.paged_attention(*case.single(span).arguments)
        if not torch.equal(alone[0], together[span.q_start]):
            return float("inf")
    return 0.0


def latent_neighbours_error() -> float:
    """The same of latents; infinite if not."""
    latent_triton.PART_LEN = 32
    query, pool, args = single(make_problem(SPANS))
    absorbed = latent_ops._absorb(query, args)
    together = latent_triton.mean_latents(absorbed, pool, args, args.spans)
    for span in args.spans:
        own = slice(span.q_start, span.q_end)
        alone = [replace(span, q_start=0, q_end=span.q_end - span.q_start)]
        if not torch.equal(latent_triton.mean_latents(absorbed[own], pool, args, alone), together[own]):
            return float("inf")
    return 0.0


def latent_padding_error() -> float:
    """Latents through tables alone, exact and as records: empty rows and wider tables change no bit,
    and the plain operations that stand in compute the same.
    """
    latent_triton.PART_LEN = 32
    latent_triton.has_e4m3 = lambda pool: True
    worst = 0.0
    for problem in (single(singles()), packed(singles(), torch.float32)):
        query, pool, args = problem
        known = step_tables(args.spans, lambda _: 0)
        absorbed = latent_ops._absorb(query, args)
        wanted = latent_triton.mean_latents(absorbed, pool, args, args.spans)
        more = torch.cat([absorbed, torch.full_like(absorbed[:3], float("nan"))])
        for most_visible in (130, 260):
            tables = filled_up(known, len(more), most_visible)
            got = latent_triton.table_mean_latents(more, pool, args, tables)
            if not torch.equal(got[: len(wanted)], wanted) or got[len(wanted) :].any():
                return float("inf")
        plain = latent_torch_capturable.mean_latents(absorbed, pool, args, known)
        worst = max(worst, largest_error(plain, wanted) / TOLERANCE[torch.float32])
    return worst


def singles() -> Problem:
    return make_problem([(length - 1, 1) for length in LENGTHS], value_scale=3.0)


def padding_error() -> float:
    """Rows without a query, wider tables and room for more parts change no bit; infinite if they do."""
    attention_triton.PART_LEN = 32
    case = make_case(Shape(num_new=1), LENGTHS).to(torch.float32)
    wanted = attention_triton.paged_attention(*case.arguments)
    known = step_tables(case.args.spans, case.args.first_visible)
    query = torch.cat([case.query, torch.full_like(case.query[:3], float("nan"))])
    for most_visible in (130, 260):
        args = replace(case.args, spans=(), prepared=filled_up(known, len(query), most_visible))
        got = attention_triton.paged_attention(query, case.k_pool, case.v_pool, args)
        if not torch.equal(got[: len(wanted)], wanted) or got[len(wanted) :].any():
            return float("inf")
    return 0.0


def recorded_step_error() -> float:
    """The kernel and the plain operations that stand in for it in steps that are recorded."""
    attention_triton.PART_LEN = 32
    errors = []
    for shape in (Shape(num_new=1), Shape(num_new=1, window=37, has_sinks=True), Shape(num_new=1, chunk=37)):
        case = make_case(shape, LENGTHS).to(torch.float32)
        tables = step_tables(case.args.spans, case.args.first_visible)
        got = torch_capturable.paged_attention(*case.arguments, tables)
        wanted = attention_triton.paged_attention(*case.arguments)
        errors.append(largest_error(got, wanted))
    return max(errors) / TOLERANCE[torch.float32]


def rope_store_error() -> float:
    """Heads turned as a whole and in part, keys of other dtypes than the pool, rows without a slot."""
    generator = torch.Generator().manual_seed(0)
    worst = 0.0
    for dim, turned in ((16, 16), (20, 12)):
        query, key = (torch.randn(7, heads, dim, generator=generator) for heads in (6, 2))
        value = torch.randn(2, 7, 9, generator=generator).transpose(0, 1)
        cosines, sines = (torch.randn(7, turned, generator=generator) for _ in range(2))
        pools = [torch.zeros(3, 2, 5, size).half() for size in (dim, 9)]
        others = [pool.clone() for pool in pools]
        slots = torch.tensor([14, 3, 15, 0, 7, 99, 8])
        args = RopeStore(cosines=cosines, sines=sines, k_pool=pools[0], v_pool=pools[1], slots=slots)
        theirs = replace(args, k_pool=others[0], v_pool=others[1])
        got = rope_store_triton.rope_store(query, key, value, args)
        worst = max(worst, largest_error(got, rope_store_reference.rope_store(query, key, value, theirs)))
        worst = max(worst, *(largest_error(*pair) / 100 for pair in zip(pools, others, strict=True)))
    return worst / TOLERANCE[torch.float32]


def permutation_error() -> float:
    """Other places of the same blocks change no bit; infinite if they do."""
    attention_triton.PART_LEN = 64
    case = make_case(Shape(num_new=3), LENGTHS).to(torch.float32)
    order = torch.randperm(case.k_pool.shape[0], generator=torch.Generator().manual_seed(1))
    place = torch.empty_like(order)
    place[order] = torch.arange(len(order))
    spans = [replace(span, blocks=place[span.blocks]) for span in case.args.spans]
    args = replace(case.args, spans=spans)
    first = attention_triton.paged_attention(*case.arguments)
    moved = attention_triton.paged_attention(case.query, case.k_pool[order], case.v_pool[order], args)
    return 0.0 if torch.equal(first, moved) else float("inf")


def store_error() -> float:
    """Keys of another stride and another dtype than the pool land in permuted slots, and nowhere else; so do
    latents, which have no values beside them.
    """
    generator = torch.Generator().manual_seed(0)
    key = torch.randn(3, 23, 5, generator=generator).transpose(0, 1)
    value = torch.randn(23, 3, 9, generator=generator)
    pools = [torch.randn(6, 3, 7, dim, generator=generator).half() for dim in (5, 9)]
    wanted = [pool.clone() for pool in pools]
    slots = torch.randperm(42, generator=generator)[:23]
    store_reference.store_kv(key, value, *wanted, slots)
    store_triton.store_kv(key, value, *pools, slots)
    alone = [wanted[0].clone().zero_(), wanted[1][..., :0]]
    store_triton.store_kv(key, value[..., :0], *alone, slots)
    stored = alone[0].transpose(1, 2).flatten(0, 1)[slots]
    pairs = [*zip(pools, wanted, strict=True), (stored, key.half())]
    return 0.0 if all(torch.equal(*pair) for pair in pairs) else float("inf")


def merge_error() -> float:
    """Absent parts are poisoned; a part and a row without keys count nothing."""
    generator = torch.Generator().manual_seed(0)
    parts = torch.randn(6, 5, 24, generator=generator)
    lse = torch.randn(6, 5, generator=generator) * 5
    counts = torch.tensor([5, 1, 3, 4, 2, 2], dtype=torch.int32)
    lse[2, 1] = lse[4, 0] = lse[4, 1] = float("-inf")
    parts[4] = 0
    for row, count in enumerate(counts.tolist()):
        parts[row, count:] = lse[row, count:] = float("nan")
    wanted = merge_reference.merge_lse(parts, lse, counts)
    return largest_error(merge_triton.merge_lse(parts, lse, counts), wanted) / TOLERANCE[torch.float32]


def move_error() -> float:
    """Copies, gathers and scatters of regions of different sizes equal the reference to the byte; each is one
    launch for all blocks and regions.
    """
    generator = torch.Generator().manual_seed(0)
    sizes, num_blocks = (64, 8192 * 4 + 48, 4, 1000), 7
    starts, start = [], 0
    for size in sizes:
        starts.append(start)
        start += (num_blocks * size + 15) // 16 * 16
    buffer = torch.randint(0, 256, (start,), dtype=torch.uint8, generator=generator)
    launches: list[tuple[bool, bool]] = []
    move_triton._move.add_pre_run_hook(
        lambda *_, **constants: launches.append((constants["FROM_RUNS"], constants["TO_RUNS"]))
    )
    mine, theirs = (move_reference.BlockRegions(buffer.clone(), tuple(starts), sizes) for _ in range(2))
    blocks, others = torch.tensor([5, 0, 3]), torch.tensor([1, 6, 2])
    table = move_triton.table(mine)
    move_triton.copy_blocks(mine, blocks, others, table)
    move_reference.copy_blocks(theirs, blocks, others)
    runs = move_reference.gather_blocks(theirs, blocks)
    is_equal = torch.equal(move_triton.gather_blocks(mine, blocks, table), runs)
    move_triton.scatter_blocks(mine, torch.tensor([4, 1, 0]), runs, table)
    move_reference.scatter_blocks(theirs, torch.tensor([4, 1, 0]), runs)
    is_equal = is_equal and launches == [(False, False), (False, True), (True, False)]
    return 0.0 if is_equal and torch.equal(mine.buffer, theirs.buffer) else float("inf")


def control_error(name: str) -> float:
    """Attention on other sequences than those of the reference."""
    attention_triton.PART_LEN = 64
    case = make_case(Shape(num_new=1), LENGTHS).to(torch.float32)
    spans = list(case.args.spans)
    last = spans[-1]
    if name.endswith("one key too few"):
        spans[-1] = replace(last, position=last.position - 1)
    elif name.endswith("a key of another block"):
        spans[-1] = replace(last, blocks=last.blocks.roll(1))
    else:
        unused = sorted({*range(case.k_pool.shape[0])} - {int(b) for span in spans for b in span.blocks})
        spans[-1] = replace(last, blocks=torch.cat([torch.tensor(unused[:1]), last.blocks[1:]]))
    args = replace(case.args, spans=spans, prepared=None)
    got = attention_triton.paged_attention(case.query, case.k_pool, case.v_pool, args)
    return largest_error(got, _attention_reference(case)) / TOLERANCE[torch.float32]


def _attention_reference(case: Case) -> Tensor:
    return attention_reference.paged_attention(*case.arguments)


CHECKS: dict[str, Callable[[], float]] = {
    "latent": latent_error,
    "latent neighbours": latent_neighbours_error,
    "latent padding": latent_padding_error,
    "padding": padding_error,
    "recorded step": recorded_step_error,
    "records": partial(records_error, part_lens=(256, 32, 256)),
    "records by bits": partial(records_error, part_lens=(32, 256, 32), by_bits=True),
    "store records": store_records_error,
    "parts": parts_error,
    "neighbours": neighbours_error,
    "permutation": permutation_error,
    "store": store_error,
    "rope store": rope_store_error,
    "merge": merge_error,
    "move": move_error,
    "numbers with gaps": edges.gaps_error,
    "large pools": edges.large_pools_error,
    "large strides": edges.large_strides_error,
}
CONTROLS = (
    f"{CONTROL}one key too few",
    f"{CONTROL}a key of another block",
    f"{CONTROL}a wrong block that nobody may read",
)
USUAL = (*ATTENTION_CASES, *CHECKS, *CONTROLS)
CHECKS |= {
    "records in other parts": partial(records_error, part_lens=(32, 256, 32)),
    "records by bits in other parts": partial(records_error, part_lens=(256, 32, 256), by_bits=True),
}


def error_of(name: str) -> float:
    if name in CONTROLS:
        return control_error(name)
    if name in CHECKS:
        return CHECKS[name]()
    return attention_error(ATTENTION_CASES[name])


if __name__ == "__main__":
    # The interpreter computes with numpy, which warns about the infinities of keys that nobody sees.
    warnings.simplefilter("ignore", RuntimeWarning)
    tell(sys.argv[1:] or USUAL, error_of)
