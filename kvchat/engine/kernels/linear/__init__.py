"""Dispatch: packed weights where this processor's library takes them, plain ones elsewhere."""

from kvchat.engine.kernels.linear.packed import can_pack, linear, pack

__all__ = ["can_pack", "linear", "pack"]
