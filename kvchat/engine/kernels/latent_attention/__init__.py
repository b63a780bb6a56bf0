"""Dispatch by device: Triton where it is made for the GPU, plain torch operations everywhere else."""

from torch import Tensor

from kvchat.engine.kernels.checks import debugs
from kvchat.engine.kernels.device import takes_triton
from kvchat.engine.kernels.health import HEALTH
from kvchat.engine.kernels.latent_attention import torch_ops
from kvchat.engine.kernels.latent_attention.args import LatentArgs
from kvchat.engine.kernels.paged_attention.step_tables import check_tables, step_tables

OPERATION = "attention over latents"


def latent_attention(query: Tensor, pool: Tensor, args: LatentArgs) -> Tensor:
    """Return what the reference returns; see there for arguments."""

    def plain() -> Tensor:
        return torch_ops.latent_attention(query, pool, args)

    if debugs() and args.spans:
        check_tables(step_tables(args.spans, lambda _: 0), pool)
    if not takes_triton(pool, OPERATION):
        return plain()
    from kvchat.engine.kernels.latent_attention import triton

    return HEALTH.attempt(
        OPERATION, lambda: torch_ops.latent_attention(query, pool, args, triton.mean_latents), plain
    )
