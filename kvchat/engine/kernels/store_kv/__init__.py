"""Dispatch by device; every device runs the reference until a faster one is there."""

from kvchat.engine.kernels.store_kv.reference import store_kv

__all__ = ["store_kv"]
