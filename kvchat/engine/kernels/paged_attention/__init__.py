"""Dispatch by device: Triton on GPUs that it is made for, plain torch operations everywhere else."""

from torch import Tensor

from kvchat.engine.kernels.device import takes_triton
from kvchat.engine.kernels.paged_attention import torch_ops
from kvchat.engine.kernels.paged_attention.args import AttentionArgs


def paged_attention(query: Tensor, k_pool: Tensor, v_pool: Tensor, args: AttentionArgs) -> Tensor:
    """Return what the reference returns; see there for arguments."""
    if takes_triton(k_pool):
        from kvchat.engine.kernels.paged_attention import triton

        return triton.paged_attention(query, k_pool, v_pool, args)
    return torch_ops.paged_attention(query, k_pool, v_pool, args)
