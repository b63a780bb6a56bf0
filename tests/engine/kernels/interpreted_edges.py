"""Tensors at the edges of what kernels are given: gaps between numbers, and pools beyond 2 ** 31 of them.

Imported by `run_interpreted`, under Triton's interpreter. Each function returns an error as a multiple of
what is allowed.
"""

import mmap
from dataclasses import replace

import torch
from torch import Tensor

from kvchat.engine.kernels.kernel_checks import largest_error
from kvchat.engine.kernels.paged_attention import reference as attention_reference
from kvchat.engine.kernels.paged_attention import triton as attention_triton
from kvchat.engine.kernels.rope_and_store import reference as rope_store_reference
from kvchat.engine.kernels.rope_and_store import triton as rope_store_triton
from kvchat.engine.kernels.rope_and_store.reference import RopeStore
from kvchat.engine.kernels.store_kv import reference as store_reference
from kvchat.engine.kernels.store_kv import triton as store_triton
from tests.engine.kernels.attention_cases import Shape, make_case

NO_RESERVE = 0x4000
"""Linux's flag for memory that need not be there before it is touched."""


def gaps_error() -> float:
    """Numbers of a head, of sinks and of angles that do not lie in a row are read as if they did."""
    attention_triton.PART_LEN = 64
    case = make_case(Shape(num_new=1, has_sinks=True), (65, 63)).to(torch.float32)
    args = replace(case.args, sinks=with_gaps(case.args.sinks))
    got = attention_triton.paged_attention(with_gaps(case.query), case.k_pool, case.v_pool, args)
    errors = [largest_error(got, attention_reference.paged_attention(*case.arguments)) / 1e-5]

    generator = torch.Generator().manual_seed(0)
    key, value = (torch.randn(5, 2, dim, generator=generator) for dim in (8, 12))
    pools = [torch.zeros(2, 2, 5, dim) for dim in (8, 12)]
    wanted = [pool.clone() for pool in pools]
    slots = torch.tensor([9, 0, 3, 7, 4])
    store_reference.store_kv(key, value, *wanted, slots)
    store_triton.store_kv(with_gaps(key), with_gaps(value), *pools, slots)
    errors += [largest_error(*pair) for pair in zip(pools, wanted, strict=True)]

    query = torch.randn(5, 4, 8, generator=generator)
    angles = [torch.randn(5, 8, generator=generator) for _ in range(2)]
    theirs = RopeStore(cosines=angles[0], sines=angles[1], k_pool=wanted[0], v_pool=wanted[1], slots=slots)
    ours = [with_gaps(side) for side in angles]
    mine = RopeStore(cosines=ours[0], sines=ours[1], k_pool=pools[0], v_pool=pools[1], slots=slots)
    got = rope_store_triton.rope_store(with_gaps(query), with_gaps(key), with_gaps(value), mine)
    turned = rope_store_reference.rope_store(query, key, value, theirs)
    errors += [largest_error(*pair) / 1e-5 for pair in zip([got, *pools], [turned, *wanted], strict=True)]
    return max(errors)


def with_gaps(tensor: Tensor | None) -> Tensor:
    """Return the same tensor as every other number of another one, with NaN between."""
    assert tensor is not None
    wide = torch.full((*tensor.shape, 2), float("nan"), dtype=tensor.dtype)
    wide[..., 0] = tensor
    return wide[..., 0]


def large_pools_error() -> float:
    """Blocks behind the first 2 ** 31 numbers of a pool are found; infinite if other bits are."""
    attention_triton.PART_LEN = 64
    case = make_case(Shape(num_new=1, num_heads=2, num_kv_heads=1, head_dim_k=16, head_dim_v=16), (65, 33))
    case = case.to(torch.float16)
    num_blocks = 2**31 // case.k_pool[0].numel() + len(case.k_pool)
    behind = num_blocks - len(case.k_pool)
    pools = [
        sparse(num_blocks * pool[0].numel()).view(num_blocks, *pool.shape[1:])
        for pool in (case.k_pool, case.v_pool)
    ]
    for pool, known in zip(pools, (case.k_pool, case.v_pool), strict=True):
        pool[behind:] = known
    spans = [replace(span, blocks=span.blocks + behind) for span in case.args.spans]
    args = replace(case.args, spans=spans)
    wanted = attention_triton.paged_attention(*case.arguments)
    found = attention_triton.paged_attention(case.query, pools[0], pools[1], args)
    key, value = (torch.randn(3, 1, 16, generator=torch.Generator().manual_seed(1)).half() for _ in "kv")
    slots = torch.tensor([0, 17, 5]) + behind * 16
    store_triton.store_kv(key, value, pools[0], pools[1], slots)
    kept = pools[0].view(-1, 16)[slots]
    return 0.0 if torch.equal(found, wanted) and torch.equal(kept, key[:, 0]) else float("inf")


def large_strides_error() -> float:
    """Heads that lie further apart than 2 ** 31 numbers together are found; infinite if others are."""
    apart = 2**30 + 8
    wide = sparse(2 * apart + 16)
    key = wide.as_strided((2, 3, 8), (8, apart, 1))
    key[:] = torch.randn(2, 3, 8, generator=torch.Generator().manual_seed(0)).half()
    slots = torch.tensor([3, 0])
    pools = [torch.zeros(1, 3, 4, 8).half() for _ in range(4)]
    store_triton.store_kv(key, key, pools[0], pools[1], slots)
    turned = torch.ones(2, 8), torch.zeros(2, 8)
    args = RopeStore(cosines=turned[0], sines=turned[1], k_pool=pools[2], v_pool=pools[3], slots=slots)
    query = rope_store_triton.rope_store(key, key, key, args)
    wanted = torch.zeros(1, 3, 4, 8).half()
    wanted[0, :, slots] = key.transpose(0, 1).contiguous()
    same = all(torch.equal(pool, wanted) for pool in pools)
    return 0.0 if same and torch.equal(query, key.contiguous()) else float("inf")


def sparse(num_numbers: int) -> Tensor:
    """Return so many numbers of float16 that take memory only where they are touched."""
    memory = mmap.mmap(-1, 2 * num_numbers, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | NO_RESERVE)
    return torch.frombuffer(memory, dtype=torch.float16)
