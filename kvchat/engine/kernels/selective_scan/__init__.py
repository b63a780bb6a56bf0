"""Dispatch by device: Triton on GPUs that it is made for, the native kernel on processors where it was built,
the reference everywhere else.
"""

from torch import Tensor

from kvchat.engine.kernels.health import HEALTH
from kvchat.engine.kernels.native.tensors import takes_native
from kvchat.engine.kernels.selective_scan import native, reference
from kvchat.engine.kernels.state_slots import StateSlots
from kvchat.engine.kernels.triton_support import takes_triton

OPERATION = "the selective scan"


def selective_scan(
    x: Tensor, dt: Tensor, a: Tensor, b: Tensor, c: Tensor, skip: Tensor | None, slots: StateSlots
) -> Tensor:
    """Return what the tokens read, float32; see the reference for arguments.

    Effect: writes the states behind the tokens, [H, P, N] each, into their slots.
    """
    rows = x, dt, a, b, c, skip

    def plain() -> Tensor:
        if takes_native(x):
            return native.selective_scan(*rows, slots)
        out, after = reference.selective_scan(*rows, slots.before())
        slots.states[slots.writes] = after
        return out

    if not takes_triton(x, OPERATION):
        return plain()
    from kvchat.engine.kernels.selective_scan import triton

    return HEALTH.attempt(OPERATION, lambda: triton.selective_scan(*rows, slots), plain)
