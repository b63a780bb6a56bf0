"""Public face for programs that use transformers. Names are resolved lazily."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kvchat.engine.hf.blocks import HFBlocks
    from kvchat.engine.hf.cache import HFCache

__all__ = ["HFBlocks", "HFCache"]

_HOMES = {"HFBlocks": "kvchat.engine.hf.blocks", "HFCache": "kvchat.engine.hf.cache"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
