"""Dispatch by device: Triton on GPUs that it is made for, its two steps one after the other elsewhere."""

from torch import Tensor

from kvchat.engine.kernels.bounds_checks import check_slots, debugs
from kvchat.engine.kernels.health import HEALTH
from kvchat.engine.kernels.rope_and_store import reference
from kvchat.engine.kernels.rope_and_store.reference import RopeStore
from kvchat.engine.kernels.store_kv import store_kv
from kvchat.engine.kernels.triton_support import takes_triton

OPERATION = "turning and storing keys"


def rope_store(query: Tensor, key: Tensor, value: Tensor, args: RopeStore) -> Tensor:
    """Do what the reference does; see there for arguments."""

    def plain() -> Tensor:
        turned_key = reference.turned(key, args.cosines, args.sines)
        store_kv(turned_key, value, args.k_pool, args.v_pool, args.slots)
        return reference.turned(query, args.cosines, args.sines)

    if debugs():
        check_slots(args.slots, args.k_pool)
    if not takes_triton(args.k_pool, OPERATION):
        return plain()
    from kvchat.engine.kernels.rope_and_store import triton

    return HEALTH.attempt(OPERATION, lambda: triton.rope_store(query, key, value, args), plain)
