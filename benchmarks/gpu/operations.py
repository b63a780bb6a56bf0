"""What single operations achieve: bytes that must be read and written, or operations that must be done."""

from collections.abc import Iterator
from functools import partial
from time import perf_counter

import torch

from benchmarks.gpu import ceilings
from benchmarks.gpu.problems import BLOCK_SIZE, Heads, attention_of, quantized_of, spans_of
from benchmarks.gpu.stage import Figure, Stage
from kvchat.engine.kernels.fp8_record import Fp8Record
from kvchat.engine.kernels.latent_attention import latent_attention
from kvchat.engine.kernels.latent_attention.args import LatentArgs
from kvchat.engine.kernels.move_blocks import BlockMoves
from kvchat.engine.kernels.move_blocks.reference import BlockRegions
from kvchat.engine.kernels.paged_attention import paged_attention
from kvchat.engine.kernels.paged_attention.step_tables import step_tables
from kvchat.engine.kernels.quantized_attention import quantized_attention
from kvchat.engine.kernels.quantized_record import Code
from kvchat.engine.kernels.store_kv import store_kv

DTYPE = torch.bfloat16
DRY_DTYPE = torch.float32


def decode_attention(stage: Stage) -> Iterator[Figure]:
    """Single queries of one layer, 32 heads on 8 of size 128."""
    dtype, heads = (DRY_DTYPE, Heads(4, 2, 16)) if stage.is_dry else (DTYPE, Heads(32, 8, 128))
    lengths = (70,) if stage.is_dry else (4096, 32768)
    for length in lengths:
        for batch in (1, 2) if stage.is_dry else (1, 4, 16, 64):
            case = attention_of(stage, heads, [length] * batch, 1, dtype)
            seconds = stage.seconds(
                lambda case=case: paged_attention(case.query, case.k_pool, case.v_pool, case.args)
            )
            num_bytes = batch * length * heads.kv * heads.dim * 2 * case.k_pool.element_size()
            yield stage.rate(
                f"decode attention, {batch} x {length:,} keys",
                seconds,
                num_bytes,
                "GB/s",
                ceiling=ceilings.COPY,
                target="at least 80 %" if length == 32768 else "",
            )
            del case


def prefill_attention(stage: Stage) -> Iterator[Figure]:
    dtype, heads = (DRY_DTYPE, Heads(4, 2, 16)) if stage.is_dry else (DTYPE, Heads(32, 8, 128))
    for length in (70,) if stage.is_dry else (2048, 8192):
        case = attention_of(stage, heads, [length], None, dtype)
        seconds = stage.seconds(
            lambda case=case: paged_attention(case.query, case.k_pool, case.v_pool, case.args)
        )
        num_operations = 4 * heads.query * heads.dim * length * (length + 1) / 2
        name = f"prefill attention, {length:,} tokens"
        yield stage.rate(name, seconds, num_operations, "TFLOP/s", ceiling=ceilings.product(dtype))


def latent_decode(stage: Stage) -> Iterator[Figure]:
    """DeepSeek's sizes; the bound is whichever of reading and computing takes longer."""
    rank, rope_dim = (16, 4) if stage.is_dry else (512, 64)
    dtype = DRY_DTYPE if stage.is_dry else DTYPE
    length, batch = (70, 1) if stage.is_dry else (32768, 4)
    for num_heads in (4,) if stage.is_dry else (16, 128):
        for record in (None, Fp8Record(rank, rope_dim)):
            spans = spans_of(stage, [length] * batch, 1)
            num_blocks = batch * -(-length // BLOCK_SIZE) + 2
            if record is None:
                pool = stage.random(num_blocks, 1, BLOCK_SIZE, rank + rope_dim, dtype=dtype)
            else:
                shape = (num_blocks, 1, BLOCK_SIZE, record.num_bytes)
                pool = torch.zeros(shape, dtype=torch.uint8, device=stage.device)
            ups = [stage.random(num_heads, 16 if stage.is_dry else 128, rank, dtype=dtype) for _ in range(2)]
            query = stage.random(batch, num_heads, ups[0].shape[1] + rope_dim, dtype=dtype)
            args = LatentArgs(
                spans=spans,
                softmax_scale=0.1,
                k_up=ups[0],
                v_up=ups[1],
                record=record,
                prepared=step_tables(spans, lambda _: 0),
            )
            seconds = stage.seconds(lambda q=query, p=pool, a=args: latent_attention(q, p, a))
            words = f"latent decode, {num_heads} heads, {'records' if record else 'exact'}"
            num_bytes = batch * length * pool[0, 0, 0].nbytes
            yield stage.rate(words, seconds, num_bytes, "GB/s", ceiling=ceilings.COPY)
            num_operations = 2 * (2 * rank + rope_dim) * num_heads * batch * length
            yield stage.rate(words, seconds, num_operations, "TFLOP/s", ceiling=ceilings.product(dtype))
            del pool


def quantized_decode(stage: Stage) -> Iterator[Figure]:
    """Single queries over quantised blocks; bytes are those of records, beside copying as many."""
    dtype, heads = (DRY_DTYPE, Heads(4, 2, 16)) if stage.is_dry else (DTYPE, Heads(32, 8, 128))
    length, batches = (200, (1,)) if stage.is_dry else (32768, (1, 16))
    for code in (Code.INT8, Code.FP8, Code.INT4, Code.INT2):
        for batch in batches:
            case = quantized_of(stage, heads, [length] * batch, (code, code), dtype)
            call = partial(quantized_attention, case.query, case.pools, case.quantized, case.args, case.step)
            name = f"quantised decode, {code}, {batch} x {length:,} keys"
            yield stage.rate(name, stage.seconds(call), case.num_bytes, "GB/s", ceiling=ceilings.COPY)
            del case, call


def block_moves(stage: Stage) -> Iterator[Figure]:
    """64 blocks of 32 layers of 8 heads of size 128: 8 MiB each."""
    num_layers, num_blocks, moved = (2, 8, 3) if stage.is_dry else (32, 192, 64)
    region = 512 if stage.is_dry else 8 * BLOCK_SIZE * 128 * 2
    sizes = (region,) * (2 * num_layers)
    starts = tuple(number * num_blocks * region for number in range(len(sizes)))
    buffer = torch.zeros(len(sizes) * num_blocks * region, dtype=torch.uint8, device=stage.device)
    moves = BlockMoves(BlockRegions(buffer, starts, sizes))
    order = torch.randperm(num_blocks).tolist()
    sources, targets = order[:moved], order[moved : 2 * moved]
    num_bytes = 2 * moved * sum(sizes)
    target = "at least 90 %"
    runs = moves.gather(sources)
    for name, action in {
        "copy": lambda: moves.copy(sources, targets),
        "gather": lambda: moves.gather(sources),
        "scatter": lambda: moves.scatter(targets, runs),
    }.items():
        words = f"{name} {moved} blocks in a launch"
        seconds = stage.seconds(action)
        yield stage.rate(words, seconds, num_bytes, "GB/s", ceiling=ceilings.COPY, target=target)


def store(stage: Stage) -> Iterator[Figure]:
    """New keys and values of 64 and 2,048 tokens, one layer."""
    dtype, heads = (DRY_DTYPE, 2) if stage.is_dry else (DTYPE, 8)
    dim = 16 if stage.is_dry else 128
    pools = [stage.random(64, heads, BLOCK_SIZE, dim, dtype=dtype) for _ in range(2)]
    for num_tokens in (3,) if stage.is_dry else (64, 2048):
        key, value = (stage.random(num_tokens, heads, dim, dtype=dtype) for _ in range(2))
        slots = torch.randperm(64 * BLOCK_SIZE, device=stage.device)[:num_tokens]
        seconds = stage.seconds(lambda k=key, v=value, s=slots: store_kv(k, v, pools[0], pools[1], s))
        yield stage.rate(f"store {num_tokens} tokens", seconds, 4 * key.nbytes, "GB/s", ceiling=ceilings.COPY)


def host_transfers(stage: Stage) -> Iterator[Figure]:
    """Blocks to host memory and back as the engine moves them, beside copies of plain runs."""
    from benchmarks.gpu.transfers import move_there_and_back

    for name, ceiling, num_bytes, run in move_there_and_back(stage):
        seconds = []
        for _ in range(1 if stage.is_dry else 5):
            stage.synchronize()
            start_s = perf_counter()
            run()
            stage.synchronize()
            seconds.append(perf_counter() - start_s)
        yield stage.rate(name, seconds, num_bytes, "GB/s", ceiling=ceiling)
