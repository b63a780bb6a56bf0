"""The engine's public face. Names are resolved when they are used, so importing it loads no torch."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kvchat.engine.api.config import EngineConfig
    from kvchat.engine.api.request import Request
    from kvchat.engine.api.sampling_params import SamplingParams
    from kvchat.engine.engine import Engine

__all__ = ["Engine", "EngineConfig", "Request", "SamplingParams"]

_HOMES = {
    "Engine": "kvchat.engine.engine",
    "EngineConfig": "kvchat.engine.api.config",
    "Request": "kvchat.engine.api.request",
    "SamplingParams": "kvchat.engine.api.sampling_params",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
