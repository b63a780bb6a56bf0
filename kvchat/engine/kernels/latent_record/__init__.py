"""Dispatch by device: Triton on GPUs that it is made for, plain torch operations everywhere else."""

from torch import Tensor

from kvchat.engine.kernels.bounds_checks import check_slots, debugs
from kvchat.engine.kernels.fp8_record import Fp8Record
from kvchat.engine.kernels.health import HEALTH
from kvchat.engine.kernels.latent_record import reference, torch_fallback
from kvchat.engine.kernels.triton_support import takes_triton

OPERATION = "storing latents as records"


def store_records(latents: Tensor, rope_keys: Tensor, pool: Tensor, slots: Tensor, record: Fp8Record) -> None:
    """Do what the reference does; see there for arguments."""

    def plain() -> None:
        ops = reference if pool.device.type == "cpu" else torch_fallback
        ops.store_records(latents, rope_keys, pool, slots, record)

    if debugs():
        check_slots(slots, pool)
    if not takes_triton(pool, OPERATION):
        plain()
        return
    from kvchat.engine.kernels.latent_record import triton

    HEALTH.attempt(OPERATION, lambda: triton.store_records(latents, rope_keys, pool, slots, record), plain)
