"""Dispatch by device: Triton where it is made for the GPU, plain torch operations everywhere else."""

from functools import partial

from torch import Tensor

from kvchat.engine.kernels.bounds_checks import debugs
from kvchat.engine.kernels.health import HEALTH
from kvchat.engine.kernels.latent_attention import torch_capturable, torch_fallback
from kvchat.engine.kernels.latent_attention.args import LatentArgs
from kvchat.engine.kernels.paged_attention.step_tables import check_tables, step_tables
from kvchat.engine.kernels.triton_support import takes_triton

OPERATION = "attention over latents"


def latent_attention(query: Tensor, pool: Tensor, args: LatentArgs) -> Tensor:
    """Return what the reference returns; see there for arguments."""
    if debugs():
        check_tables(args.prepared or step_tables(args.spans, lambda _: 0), pool)
    if not takes_triton(pool, OPERATION):
        return _plain(query, pool, args)
    return HEALTH.attempt(OPERATION, lambda: _triton(query, pool, args), lambda: _plain(query, pool, args))


def _triton(query: Tensor, pool: Tensor, args: LatentArgs) -> Tensor:
    from kvchat.engine.kernels.latent_attention import triton

    if args.spans:
        return torch_fallback.latent_attention(query, pool, args, triton.mean_latents)
    assert args.prepared is not None
    mean = partial(triton.table_mean_latents, pool=pool, args=args, tables=args.prepared)
    return torch_fallback.in_latent_space(query, args, mean)


def _plain(query: Tensor, pool: Tensor, args: LatentArgs) -> Tensor:
    if args.spans:
        return torch_fallback.latent_attention(query, pool, args)
    assert args.prepared is not None
    mean = partial(torch_capturable.mean_latents, pool=pool, args=args, tables=args.prepared)
    return torch_fallback.in_latent_space(query, args, mean)
