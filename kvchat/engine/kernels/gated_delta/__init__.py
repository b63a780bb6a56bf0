"""Dispatch by device: Triton on GPUs that it is made for, the native kernel on processors where it was built,
the reference everywhere else.
"""

from torch import Tensor

from kvchat.engine.kernels.gated_delta import native, reference
from kvchat.engine.kernels.health import HEALTH
from kvchat.engine.kernels.native.tensors import takes_native
from kvchat.engine.kernels.state_slots import StateSlots
from kvchat.engine.kernels.triton_support import takes_triton

OPERATION = "the gated delta rule"


def gated_delta(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    decay: Tensor,
    beta: Tensor,
    slots: StateSlots,
    *,
    is_normal: bool,
) -> Tensor:
    """Return what the tokens read; see the reference for arguments.

    Effect: writes the states behind the tokens, [H, K, V] each, into their slots.
    """
    rows = query, key, value, decay, beta

    def plain() -> Tensor:
        if takes_native(query):
            return native.gated_delta(*rows, slots, is_normal=is_normal)
        out, after = reference.gated_delta(*rows, slots.before(), is_normal=is_normal)
        slots.states[slots.writes] = after
        return out

    if not takes_triton(query, OPERATION):
        return plain()
    from kvchat.engine.kernels.gated_delta import triton

    return HEALTH.attempt(OPERATION, lambda: triton.gated_delta(*rows, slots, is_normal=is_normal), plain)
