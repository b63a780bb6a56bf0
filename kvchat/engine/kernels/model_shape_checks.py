"""Kernels of attention against their definitions in a model's own sizes.

Each number of heads and head size is compiled by itself: that others are right proves nothing for it.
Dimensions: T tokens in the batch, H query heads, H_kv key-value heads, D head size, N blocks, P block size.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import torch

from kvchat.engine.kernels import (
    latent_attention,
    latent_record,
    paged_attention,
    quantized_attention,
    store_kv,
)
from kvchat.engine.kernels.attention_shapes import AttentionSizes, KernelSizes, LatentSizes
from kvchat.engine.kernels.fp8_record import Fp8Record
from kvchat.engine.kernels.kernel_checks import (
    NUM_NEW,
    KernelCheck,
    attention_error,
    attention_problem,
    largest_error,
    latent_error,
    on_cpu,
    random_numbers,
    records_error,
    store_error,
    worst_error,
)
from kvchat.engine.kernels.paged_attention.args import KVPair
from kvchat.engine.kernels.quantized_attention.args import QuantizedPool, QuantizedStep
from kvchat.engine.kernels.quantized_attention.reference import quantized_attention as quantized_definition
from kvchat.engine.kernels.quantized_kv.reference import quantize
from kvchat.engine.kernels.quantized_record import Code, QuantizedRecord, num_quantized


def trials_of(layers: Sequence[KernelSizes]) -> dict[str, KernelCheck]:
    """Return what is to be tried for a model that has such layers, each listed once."""
    exact = [sizes for sizes in layers if isinstance(sizes, AttentionSizes) and sizes.codes is None]
    quantized = [sizes for sizes in layers if isinstance(sizes, AttentionSizes) and sizes.codes is not None]
    latents = [layer for layer in layers if isinstance(layer, LatentSizes)]
    packed = [layer for layer in latents if layer.is_packed]
    wanted: dict[str, tuple[Callable[..., float], Sequence[KernelSizes]]] = {
        store_kv.OPERATION: (store_error, [*exact, *quantized]),
        paged_attention.OPERATION: (attention_error, exact),
        quantized_attention.OPERATION: (_quantized_error, quantized),
        latent_attention.OPERATION: (_latent_error, latents),
        latent_record.OPERATION: (_records_error, packed),
    }
    return {
        operation: partial(worst_error, error, listed)
        for operation, (error, listed) in wanted.items()
        if listed
    }


def formats_error(device: torch.device, dtype: torch.dtype, *, seed: int = 0) -> float:
    """Every code, of keys and of values, in the usual sizes."""
    codes = (Code.FP8, Code.INT4), (Code.INT8, Code.INT8), (Code.INT4, Code.INT2), (Code.INT2, Code.FP8)
    return worst_error(
        _quantized_error, [AttentionSizes(codes=pair) for pair in codes], device, dtype, seed=seed
    )


QUANTIZED_CHECKS: dict[str, KernelCheck] = {quantized_attention.OPERATION: formats_error}


def _latent_error(layer: LatentSizes, device: torch.device, dtype: torch.dtype, seed: int) -> float:
    record = Fp8Record(layer.rank, layer.rope_dim) if layer.is_packed else None
    return latent_error(device, dtype, record, layer, seed=seed)


def _records_error(layer: LatentSizes, device: torch.device, dtype: torch.dtype, seed: int) -> float:
    return records_error(device, dtype, Fp8Record(layer.rank, layer.rope_dim), seed=seed)


def _quantized_error(sizes: AttentionSizes, device: torch.device, dtype: torch.dtype, seed: int) -> float:
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
