"""Latent sizes in a config, checked before a model is built from it."""

from pathlib import Path
from typing import Any

from kvchat.errors import ModelUnreadable

_SIZES = ("kv_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim")


def check_latent_sizes(config: Any, path: Path) -> None:
    """Refuse sizes of latent layers that are impossible, or at odds with each other.

    Args:
        config: as transformers has read and completed it from `path`; sizes that are missing there and have
            been completed wrongly show in the shapes of the weights.

    Raises:
        ModelUnreadable: the message names the size.
    """
    if getattr(config, "kv_lora_rank", None) is None:
        return
    for name in _SIZES:
        value = getattr(config, name, None)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise _wrong(path, f"{name} must be a number above 0, not {value!r}")
    rope_dim, parts = config.qk_rope_head_dim, config.qk_nope_head_dim + config.qk_rope_head_dim
    if rope_dim % 2:
        raise _wrong(path, f"qk_rope_head_dim is odd ({rope_dim}), but numbers turn in pairs")
    if getattr(config, "qk_head_dim", None) not in (None, parts):
        sizes = f"qk_nope_head_dim + qk_rope_head_dim = {parts}"
        raise _wrong(path, f"qk_head_dim is {config.qk_head_dim!r}, but {sizes}")


def _wrong(path: Path, what: str) -> ModelUnreadable:
    return ModelUnreadable(f"{path}: {what}. Correct it, fetch the model again, or use `-m starter`.")
