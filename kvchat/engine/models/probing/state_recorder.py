"""State recorder: what the layers of a model keep besides keys and values, and which module does."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import lcm

from torch import Tensor, nn

from kvchat.engine.formats.recurrent.spec import StateSpec, StateTensor, state_spec
from kvchat.engine.memory.device_pool import DTYPE_NAMES

PIECE = 64
"""Tokens that layers without a chunk length of their own compute together."""
Name = tuple[int, str, int]
"""A tensor of a state: its layer, its kind, its number."""


@dataclass(slots=True)
class StateRecorder:
    """Notes during a probe what layers keep, and which module does: the innermost that is running."""

    tensors: dict[Name, Tensor] = field(default_factory=dict)
    """As given, or of a convolution as it is to be kept."""
    keepers: list[nn.Module] = field(default_factory=list)
    _running: list[nn.Module] = field(default_factory=list)

    def note(self, name: Name, tensor: Tensor) -> None:
        self.tensors[name] = tensor
        if not any(self._running[-1] is keeper for keeper in self.keepers):
            self.keepers.append(self._running[-1])

    @contextmanager
    def watching(self, model: nn.Module) -> Iterator[None]:
        """Know which module runs inside the context."""
        hooks = []
        for module in model.modules():
            hooks.append(module.register_forward_pre_hook(lambda one, _: self._running.append(one)))
            hooks.append(module.register_forward_hook(self._leave))
        try:
            yield
        finally:
            self._running.clear()
            for hook in hooks:
                hook.remove()

    def _leave(self, *_: object) -> None:
        """Note that a module is through; a hook that returns something replaces what it returns."""
        self._running.pop()

    def specs(self) -> dict[int, StateSpec]:
        """Return what each layer keeps."""
        kept: dict[int, list[StateTensor]] = {}
        for (layer, kind, number), tensor in sorted(self.tensors.items(), key=lambda one: one[0]):
            shape = tuple(tensor.shape[1:])
            kept.setdefault(layer, []).append(StateTensor(kind, number, DTYPE_NAMES[tensor.dtype], shape))
        piece = lcm(PIECE, *(_chunk_len(keeper) for keeper in self.keepers))
        return {layer: state_spec(tensors, piece) for layer, tensors in kept.items()}


def _chunk_len(keeper: nn.Module) -> int:
    """Return how many tokens a layer computes together by itself."""
    length = getattr(keeper, "chunk_size", getattr(keeper, "block_size", 1))
    return length if isinstance(length, int) and length > 0 else 1
