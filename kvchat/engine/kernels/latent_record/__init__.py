"""Dispatch by device: Triton on GPUs that it is made for, plain torch operations everywhere else."""

from torch import Tensor

from kvchat.engine.kernels.device import takes_triton
from kvchat.engine.kernels.fp8_record import Fp8Record
from kvchat.engine.kernels.latent_record import reference


def store_records(latents: Tensor, rope_keys: Tensor, pool: Tensor, slots: Tensor, record: Fp8Record) -> None:
    """Do what the reference does; see there for arguments."""
    if takes_triton(pool):
        from kvchat.engine.kernels.latent_record import triton

        triton.store_records(latents, rope_keys, pool, slots, record)
    else:
        reference.store_records(latents, rope_keys, pool, slots, record)
