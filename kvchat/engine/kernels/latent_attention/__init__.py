"""Dispatch by device: Triton where it is made for the GPU, plain torch operations everywhere else."""

from torch import Tensor

from kvchat.engine.kernels.device import takes_triton
from kvchat.engine.kernels.latent_attention import torch_ops
from kvchat.engine.kernels.latent_attention.args import LatentArgs


def latent_attention(query: Tensor, pool: Tensor, args: LatentArgs) -> Tensor:
    """Return what the reference returns; see there for arguments."""
    if takes_triton(pool):
        from kvchat.engine.kernels.latent_attention import triton

        return torch_ops.latent_attention(query, pool, args, triton.mean_latents)
    return torch_ops.latent_attention(query, pool, args)
