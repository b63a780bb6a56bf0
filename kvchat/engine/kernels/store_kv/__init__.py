"""Dispatch by device: Triton on GPUs that it is made for, the reference everywhere else."""

from torch import Tensor

from kvchat.engine.kernels.device import takes_triton
from kvchat.engine.kernels.store_kv import reference


def store_kv(key: Tensor, value: Tensor, k_pool: Tensor, v_pool: Tensor, slots: Tensor) -> None:
    """Do what the reference does; see there for arguments."""
    if takes_triton(k_pool):
        from kvchat.engine.kernels.store_kv import triton

        triton.store_kv(key, value, k_pool, v_pool, slots)
    else:
        reference.store_kv(key, value, k_pool, v_pool, slots)
