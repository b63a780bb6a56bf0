"""Dispatch by device: Triton on GPUs that it is made for, the reference everywhere else."""

from torch import Tensor

from kvchat.engine.kernels.bounds_checks import check_slots, debugs
from kvchat.engine.kernels.health import HEALTH
from kvchat.engine.kernels.store_kv import reference, torch_fallback
from kvchat.engine.kernels.triton_support import takes_triton

OPERATION = "storing keys and values"


def store_kv(key: Tensor, value: Tensor, k_pool: Tensor, v_pool: Tensor, slots: Tensor) -> None:
    """Do what the reference does; see there for arguments. Pools may lie in host memory, pinned."""

    def plain() -> None:
        ops = reference if k_pool.device.type == "cpu" else torch_fallback
        there = k_pool.device
        ops.store_kv(key.to(there), value.to(there), k_pool, v_pool, slots.to(there))

    if debugs():
        check_slots(slots, k_pool)
    if not takes_triton(key, OPERATION):
        plain()
        return
    from kvchat.engine.kernels.store_kv import triton

    HEALTH.attempt(OPERATION, lambda: triton.store_kv(key, value, k_pool, v_pool, slots), plain)
