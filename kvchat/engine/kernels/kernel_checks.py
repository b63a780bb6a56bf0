"""Every Triton kernel against its definition on a few random numbers, before a model relies on it.

Compiled code has been wrong on single cards and drivers: what a kernel computes elsewhere proves nothing for
this one. Each number of heads and head size is compiled by itself, so kernels of attention are tried in a
model's own sizes, too. Takes seconds the first time, for compiling; what Triton keeps of that makes later
starts quick. The definitions compute on the processor.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from functools import partial
from math import inf
from typing import Any

import torch
from torch import Tensor

from kvchat.engine.kernels import (
    causal_conv,
    gated_delta,
    latent_record,
    move_blocks,
    paged_attention,
    quantized_attention,
    rope_and_store,
    selective_scan,
    store_kv,
)
from kvchat.engine.kernels import latent_attention as latent
from kvchat.engine.kernels.attention_shapes import AttentionSizes, KernelSizes, LatentSizes
from kvchat.engine.kernels.causal_conv import reference as conv_reference
from kvchat.engine.kernels.fp8_record import Fp8Record
from kvchat.engine.kernels.gated_delta import reference as delta_reference
from kvchat.engine.kernels.health import HEALTH, Health
from kvchat.engine.kernels.latent_attention.args import LatentArgs
from kvchat.engine.kernels.latent_attention.reference import latent_attention as latent_definition
from kvchat.engine.kernels.latent_record import reference as record_reference
from kvchat.engine.kernels.move_blocks import reference as move_reference
from kvchat.engine.kernels.paged_attention.args import AttentionArgs, KVPair, SequenceSpan
from kvchat.engine.kernels.paged_attention.reference import paged_attention as attention_definition
from kvchat.engine.kernels.quantized_attention.args import QuantizedPool, QuantizedStep
from kvchat.engine.kernels.quantized_attention.reference import quantized_attention as quantized_definition
from kvchat.engine.kernels.quantized_kv.reference import quantize
from kvchat.engine.kernels.quantized_record import QuantizedRecord, num_quantized
from kvchat.engine.kernels.rope_and_store import reference as rope_store_reference
from kvchat.engine.kernels.rope_and_store.reference import RopeStore
from kvchat.engine.kernels.selective_scan import reference as scan_reference
from kvchat.engine.kernels.state_slots import StateSlots
from kvchat.engine.kernels.store_kv import reference as store_reference

LENGTHS = (1, 64, 65, 200, 1100)
"""The last is divided into several parts, as long contexts are, which are merged."""
NUM_NEW = (1, 5)
"""Queries of a sequence: alone, and as a prompt's."""
USUAL_SIZES = (
    AttentionSizes(),
    AttentionSizes(head_dim_k=128, head_dim_v=128),
    LatentSizes(),
    LatentSizes(is_packed=True),
    LatentSizes(rank=200, rope_dim=8, is_packed=True),
)
TOLERANCES = {torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 4e-2}


KernelCheck = Callable[[torch.device, torch.dtype, int], float]
"""Returns the largest error of a kernel, infinite where one is not a number; the last argument is the seed of
its numbers.
"""


def try_kernels(
    device: torch.device, dtype: torch.dtype, trials: Mapping[str, KernelCheck], health: Health = HEALTH
) -> None:
    """Refuse the kernels that raise, or compute other numbers than their definitions.

    Raises:
        torch.AcceleratorError: the device failed while it computed; nothing on it can be trusted.
    """
    for operation, trial in trials.items():
        if not health.is_well(operation):
            continue
        error = health.attempt(operation, partial(trial, device, dtype, 0), lambda: 0.0)
        if not error <= TOLERANCES[dtype]:  # nor is NaN
            health.refuse(operation, f"its numbers are {error:.2g} away from those of its definition")


def trials_of(layers: Sequence[KernelSizes]) -> dict[str, KernelCheck]:
    """Return what is to be tried for a model that has such layers, each listed once."""
    exact = [sizes for sizes in layers if isinstance(sizes, AttentionSizes) and sizes.codes is None]
    quantized = [sizes for sizes in layers if isinstance(sizes, AttentionSizes) and sizes.codes is not None]
    latents = [layer for layer in layers if isinstance(layer, LatentSizes)]
    wanted: dict[str, tuple[Callable[..., float], Sequence[KernelSizes]]] = {
        store_kv.OPERATION: (store_error, [*exact, *quantized]),
        paged_attention.OPERATION: (attention_error, exact),
        quantized_attention.OPERATION: (quantized_error, quantized),
        latent.OPERATION: (latent_error, latents),
        latent_record.OPERATION: (records_error, [layer for layer in latents if layer.is_packed]),
    }
    return {
        operation: partial(worst_error, error, listed)
        for operation, (error, listed) in wanted.items()
        if listed
    }


def worst_error(
    error: Callable[..., float], layers: Sequence[object], device: torch.device, dtype: torch.dtype, seed: int
) -> float:
    """Return the largest error of all sizes."""
    return max(error(sizes, device, dtype, seed) for sizes in layers)


def attention_error(sizes: AttentionSizes, device: torch.device, dtype: torch.dtype, seed: int) -> float:
    errors = []
    for num_new in NUM_NEW:
        query, pools, args = attention_problem(sizes, num_new, device, dtype, seed)
        there = replace(args, spans=on_cpu(list(args.spans)))
        wanted = attention_definition(query.cpu(), pools[0].cpu(), pools[1].cpu(), there)
        found = paged_attention.paged_attention(query, pools[0], pools[1], args)
        errors.append(largest_error(found, wanted))
    return max(errors)


def quantized_error(sizes: AttentionSizes, device: torch.device, dtype: torch.dtype, seed: int) -> float:
    """Quantized blocks hold other numbers than the exact ones of the same place, in another order."""
    assert sizes.codes is not None
    dims = sizes.head_dim_k, sizes.head_dim_v
    records = [
        QuantizedRecord(code, sizes.block_size, dim, is_by_channel)
        for code, dim, is_by_channel in zip(sizes.codes, dims, (True, False), strict=True)
    ]
    errors = []
    for num_new in NUM_NEW:
        query, pools, args = attention_problem(sizes, num_new, device, dtype, seed)
        others = [
            random_numbers(torch.device("cpu"), dtype, *pool.shape, seed=seed + side)
            for side, pool in enumerate(pools, 7)
        ]
        packed = [quantize(other, record)[:, :, None] for other, record in zip(others, records, strict=True)]
        ends = [span.position + span.q_end - span.q_start for span in args.spans]
        old = [
            span.blocks.flip(0)[: num_quantized(end - 1, sizes.block_size)]
            for span, end in zip(args.spans, ends, strict=True)
        ]
        nothing = old[0][:0]
        there = replace(args, spans=on_cpu(list(args.spans)))
        on_host = QuantizedPool(packed[0], packed[1], records[0], records[1])
        wanted = quantized_definition(
            query.cpu(),
            KVPair(pools[0].cpu(), pools[1].cpu()),
            on_host,
            there,
            [blocks.cpu() for blocks in old],
        )
        pool = replace(on_host, keys=packed[0].to(device), values=packed[1].to(device))
        step = QuantizedStep(old, nothing, nothing)
        found = quantized_attention.quantized_attention(query, KVPair(pools[0], pools[1]), pool, args, step)
        errors.append(largest_error(found, wanted))
    return max(errors)


def store_error(sizes: AttentionSizes, device: torch.device, dtype: torch.dtype, seed: int) -> float:
    """Nine tokens in slots of any order."""
    num_slots = 4 * sizes.block_size
    num_tokens = min(9, num_slots)
    dims = sizes.head_dim_k, sizes.head_dim_v
    key, value = (
        random_numbers(device, dtype, num_tokens, sizes.num_kv_heads, dim, seed=seed + side)
        for side, dim in enumerate(dims, 1)
    )
    pools = [
        random_numbers(device, dtype, 4, sizes.num_kv_heads, sizes.block_size, dim, seed=seed + side)
        for side, dim in enumerate(dims, 3)
    ]
    wanted = [pool.cpu().clone() for pool in pools]
    slots = torch.randperm(num_slots, generator=torch.Generator().manual_seed(seed + 5))[:num_tokens]
    store_kv.store_kv(key, value, pools[0], pools[1], slots.to(device))
    store_reference.store_kv(key.cpu(), value.cpu(), wanted[0], wanted[1], slots)
    return max(largest_error(*pair) for pair in zip(pools, wanted, strict=True))


def move_error(device: torch.device, dtype: torch.dtype, seed: int) -> float:
    """Copies, gathers and scatters of bytes, whatever the dtype."""
    sizes, num_blocks = (1024, 32), 6
    generator = torch.Generator().manual_seed(seed)
    buffer = torch.randint(0, 256, (num_blocks * sum(sizes),), dtype=torch.uint8, generator=generator)
    mine, theirs = (
        move_reference.BlockRegions(each, (0, num_blocks * sizes[0]), sizes)
        for each in (buffer.clone().to(device), buffer)
    )
    moves = move_blocks.BlockMoves(mine)
    moves.copy([5, 0], [1, 2])
    move_reference.copy_blocks(theirs, torch.tensor([5, 0]), torch.tensor([1, 2]))
    runs = move_reference.gather_blocks(theirs, torch.tensor([2, 4, 1]))
    errors = [largest_error(moves.gather([2, 4, 1]), runs)]
    moves.scatter([0, 3, 5], runs.to(device))
    move_reference.scatter_blocks(theirs, torch.tensor([0, 3, 5]), runs)
    return max(*errors, largest_error(mine.buffer, theirs.buffer))


def latent_error(sizes: LatentSizes, device: torch.device, dtype: torch.dtype, seed: int) -> float:
    """Latents as they are or as records."""
    record = Fp8Record(sizes.rank, sizes.rope_dim) if sizes.is_packed else None
    rank, rope_dim, num_heads = sizes.rank, sizes.rope_dim, sizes.num_heads
    block_size, head_dim = sizes.block_size, sizes.head_dim
    num_blocks = sum(-(-length // block_size) for length in LENGTHS)
    rows = random_numbers(
        torch.device("cpu"), dtype, num_blocks, 1, block_size, rank + rope_dim, seed=seed + 1
    )
    if record is not None:
        parts = rows.flatten(0, 2).tensor_split([rank], dim=1)
        packed = record_reference.pack(parts[0], parts[1], record)
        rows = packed.view(num_blocks, 1, block_size, record.num_bytes)
    spans = spans_of(device, 1, block_size, seed)
    query = random_numbers(device, dtype, len(LENGTHS), num_heads, head_dim + rope_dim, seed=seed + 2)
    ups = [
        random_numbers(device, dtype, num_heads, head_dim, rank, seed=seed + side) * rank**-0.5
        for side in (3, 4)
    ]
    args = LatentArgs(spans=spans, softmax_scale=0.1, k_up=ups[0], v_up=ups[1], record=record)
    there = replace(args, spans=on_cpu(spans), k_up=ups[0].cpu(), v_up=ups[1].cpu())
    wanted = latent_definition(query.cpu(), rows, there)
    return largest_error(latent.latent_attention(query, rows.to(device), args), wanted)


def records_error(sizes: LatentSizes, device: torch.device, dtype: torch.dtype, seed: int) -> float:
    """Records are those of the definition to the byte, or everything is wrong."""
    record = Fp8Record(sizes.rank, sizes.rope_dim)
    latents = random_numbers(device, dtype, 9, record.rank, seed=seed + 1)
    rope_keys = random_numbers(device, dtype, 9, record.rope_dim, seed=seed + 2).bfloat16().to(dtype)
    pool = torch.zeros(2, 1, 16, record.num_bytes, dtype=torch.uint8, device=device)
    wanted, slots = pool.cpu().clone(), torch.arange(9) * 3
    latent_record.store_records(latents, rope_keys, pool, slots.to(device), record)
    record_reference.store_records(latents.cpu(), rope_keys.cpu(), wanted, slots, record)
    end = record.rope_at + 2 * record.rope_dim
    return 0.0 if torch.equal(pool.cpu()[..., :end], wanted[..., :end]) else inf


def rope_store_error(device: torch.device, dtype: torch.dtype, seed: int) -> float:
    """Heads of which a part is turned; rounding alone may differ, by a step of the dtype."""
    query, key, value = (
        random_numbers(device, dtype, 9, heads, 64, seed=seed + side)
        for side, heads in enumerate((4, 2, 2), 1)
    )
    cosines, sines = (random_numbers(device, dtype, 9, 32, seed=seed + side).tanh() for side in (5, 6))
    pools = [random_numbers(device, dtype, 4, 2, 16, 64, seed=seed + side) for side in (7, 8)]
    slots = torch.arange(9, device=device) * 5
    args = RopeStore(cosines=cosines, sines=sines, k_pool=pools[0], v_pool=pools[1], slots=slots)
    there = RopeStore(**{part.name: getattr(args, part.name).cpu().clone() for part in fields(args)})
    wanted = rope_store_reference.rope_store(query.cpu(), key.cpu(), value.cpu(), there)
    errors = [largest_error(rope_and_store.rope_store(query, key, value, args), wanted)]
    errors += [largest_error(*pair) for pair in zip(pools, (there.k_pool, there.v_pool), strict=True)]
    return max(errors)


def delta_error(device: torch.device, dtype: torch.dtype, seed: int) -> float:
    """Two sequences, with a decay of a head and of each number of its keys."""
    draw = _drawing(seed, dtype)
    query, key, value = draw(2, 3, 1, 128), draw(2, 3, 1, 128), draw(2, 3, 2, 32)
    beta = draw(2, 3, 2).sigmoid()
    errors = []
    for sizes in ((2, 3, 2), (2, 3, 2, 128)):
        rows = query, key, value, -draw(*sizes).abs(), beta
        states = draw(2, 2, 128, 32).float()
        wanted = delta_reference.gated_delta(*rows, states, is_normal=True)
        slots = _slots(states, device)
        args: list[Any] = [*(one.to(device) for one in rows), slots]
        found = gated_delta.gated_delta(*args, is_normal=True)
        errors += [largest_error(found, wanted[0]), largest_error(slots.states[2:], wanted[1])]
    return max(errors)


def scan_error(device: torch.device, dtype: torch.dtype, seed: int) -> float:
    """Mamba2, and Mamba, whose heads have one channel and a decay for each number of its state."""
    draw = _drawing(seed, dtype)
    errors = []
    for heads, dim, groups, size, rates in ((2, 8, 2, 128, (2,)), (70, 1, 1, 16, (70, 16))):
        b, c = draw(2, 3, groups, size), draw(2, 3, groups, size)
        rows = draw(2, 3, heads, dim), draw(2, 3, heads).abs(), -draw(*rates).abs(), b, c, draw(heads)
        states = draw(2, heads, dim, size).float()
        wanted = scan_reference.selective_scan(*rows, states)
        slots = _slots(states, device)
        args: list[Any] = [*(one.to(device) for one in rows), slots]
        found = selective_scan.selective_scan(*args)
        errors += [largest_error(found, wanted[0]), largest_error(slots.states[2:], wanted[1])]
    return max(errors)


def conv_error(device: torch.device, dtype: torch.dtype, seed: int) -> float:
    """Two sequences, with inputs before them; those that are kept are the last ones to the bit."""
    draw = _drawing(seed, dtype)
    x, weight, bias, past = draw(2, 9, 130), draw(130, 4), draw(130), draw(2, 130, 4)
    wanted = conv_reference.causal_conv(x, weight, bias, past, is_activated=True)
    rows: list[Any] = [one.to(device, copy=True) for one in (x, weight, bias, past)]
    found = causal_conv.causal_conv(*rows, is_activated=True)
    return largest_error(found, wanted) if torch.equal(rows[3].cpu(), x.mT[..., -4:]) else inf


def _slots(states: Tensor, device: torch.device) -> StateSlots:
    """Return slots of states before tokens, and as many of states behind them."""
    slots = torch.arange(2 * len(states), device=device)
    return StateSlots(torch.cat((states, states)).to(device), *slots.tensor_split(2))


def _drawing(seed: int, dtype: torch.dtype) -> Callable[..., Tensor]:
    """Return what draws small random numbers on the processor."""
    generator = torch.Generator().manual_seed(seed)
    return lambda *size: torch.randn(size, generator=generator).to(dtype) / 2


TRIALS: dict[str, KernelCheck] = trials_of(USUAL_SIZES) | {
    move_blocks.OPERATION: move_error,
    gated_delta.OPERATION: delta_error,
    selective_scan.OPERATION: scan_error,
    causal_conv.OPERATION: conv_error,
    rope_and_store.OPERATION: rope_store_error,
}


def attention_problem(
    sizes: AttentionSizes, num_new: int, device: torch.device, dtype: torch.dtype, seed: int
) -> tuple[Tensor, tuple[Tensor, Tensor], AttentionArgs]:
    """Return queries, pools and sequences of which the last tokens have queries, in blocks of any order."""
    spans = spans_of(device, num_new, sizes.block_size, seed)
    shape = sum(len(span.blocks) for span in spans), sizes.num_kv_heads, sizes.block_size
    keys = random_numbers(device, dtype, *shape, sizes.head_dim_k, seed=seed + 1)
    values = random_numbers(device, dtype, *shape, sizes.head_dim_v, seed=seed + 2)
    query = random_numbers(device, dtype, spans[-1].q_end, sizes.num_heads, sizes.head_dim_k, seed=seed + 3)
    scale = sizes.head_dim_k**-0.5
    args = AttentionArgs(spans, softmax_scale=scale, window=sizes.window, chunk=sizes.chunk)
    return query, (keys, values), args


def spans_of(device: torch.device, num_new: int, block_size: int, seed: int = 0) -> list[SequenceSpan]:
    num_blocks = sum(-(-length // block_size) for length in LENGTHS)
    blocks = torch.randperm(num_blocks, generator=torch.Generator().manual_seed(seed)).to(device)
    spans: list[SequenceSpan] = []
    row = first = 0
    for length in LENGTHS:
        num, num_blocks = min(num_new, length), -(-length // block_size)
        spans.append(SequenceSpan(row, row + num, length - num, 0, blocks[first : first + num_blocks]))
        row, first = row + num, first + num_blocks
    return spans


def on_cpu(spans: list[SequenceSpan]) -> list[SequenceSpan]:
    return [replace(span, blocks=span.blocks.cpu()) for span in spans]


def random_numbers(device: torch.device, dtype: torch.dtype, *size: int, seed: int) -> Tensor:
    return torch.randn(*size, generator=torch.Generator().manual_seed(seed)).to(device, dtype)


def largest_error(got: Tensor, wanted: Tensor) -> float:
    """Return the largest difference; infinite where one is not a number, so that no `max` drops it."""
    return float((got.cpu().double() - wanted.double()).abs().nan_to_num(nan=inf).max())
