"""Latent attention layers: cache a latent vector instead of keys and values, and do not expand it.

transformers' latent attention (DeepSeek-V2 and its kin) computes one latent and one rope key per token, and
expands them by `expand_kv` into keys and values of all heads before it attends. Under our attention that step
is left out: the latents themselves arrive there, and the projection is applied to queries and results.
"""

from dataclasses import dataclass
from pathlib import Path
from types import MethodType
from typing import Any

from torch import Tensor, nn

from kvchat.engine.models.hook import IMPLEMENTATION, PROBE_IMPLEMENTATION, implementation_of
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


_EXPAND = "expand_kv"


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentLayer:
    """One layer's sizes and its projection from latents to the keys and values of all heads.

    Args:
        rank: numbers of a latent, R.
        rope_dim: numbers of the rope key, d_r.
        key_dim: numbers of a head's key without its rope part, d_n.
        value_dim: numbers of a head's value, d_v.
        weight: [H * (d_n + d_v), R]; the model's own tensor, so it follows when weights are exchanged.
        rope_layout: in which order the rope key stands; empty: not looked at.
    """

    rank: int
    rope_dim: int
    key_dim: int
    value_dim: int
    weight: Tensor
    rope_layout: str = ""

    @property
    def k_up(self) -> Tensor:
        """From a latent to the keys of all heads [H, d_n, R], a view."""
        return self._by_head()[:, : self.key_dim]

    @property
    def v_up(self) -> Tensor:
        """From a latent to the values of all heads [H, d_v, R], a view."""
        return self._by_head()[:, self.key_dim :]

    def _by_head(self) -> Tensor:
        return self.weight.view(-1, self.key_dim + self.value_dim, self.rank)


def latent_layers(model: nn.Module) -> dict[int, LatentLayer]:
    """Return the layers whose latents can be kept, by layer index."""
    return {
        int(module.layer_idx): LatentLayer(
            rank=module.kv_lora_rank,
            rope_dim=module.qk_rope_head_dim,
            key_dim=module.qk_nope_head_dim,
            value_dim=module.v_head_dim,
            weight=module.kv_b_proj.weight,
        )
        for module in latent_modules(model)
    }


def projections(model: nn.Module) -> tuple[nn.Module, ...]:
    """Return the linear layers whose weights latent attention reads itself."""
    return tuple(module.kv_b_proj for module in latent_modules(model))


def keep_latents(model: nn.Module) -> None:
    """Hand latents to our attention as they are; under any other attention the model expands them itself."""
    for module in latent_modules(model):
        setattr(module, _EXPAND, MethodType(_expand_unless_ours, module))


def expand_latents(model: nn.Module) -> None:
    """Undo `keep_latents`."""
    for module in model.modules():
        module.__dict__.pop(_EXPAND, None)


def _expand_unless_ours(module: Any, latents: Tensor, rope_keys: Tensor) -> tuple[Tensor, Tensor]:
    if implementation_of(module.config) in (IMPLEMENTATION, PROBE_IMPLEMENTATION):
        return latents, rope_keys
    expanded: tuple[Tensor, Tensor] = type(module).expand_kv(module, latents, rope_keys)
    return expanded


def latent_modules(model: nn.Module) -> list[Any]:
    """Return the attention modules whose projection is a plain product, which can be applied elsewhere."""
    return [
        module
        for module in model.modules()
        if callable(getattr(type(module), _EXPAND, None))
        and isinstance(getattr(module, "layer_idx", None), int)
        and _is_product(getattr(module, "kv_b_proj", None))
    ]


def _is_product(projection: object) -> bool:
    return type(projection) is nn.Linear and projection.bias is None
