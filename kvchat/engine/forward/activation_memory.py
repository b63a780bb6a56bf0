"""Peak memory of what a forward pass allocates, measured by watching every tensor it makes.

Works on any device: a dispatch mode sees each operation's results and notes when their storages are freed.
"""

import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode


@dataclass(slots=True)
class Allocation:
    """Part of a run: bytes that live when it begins, and the most that live at one time until it ends."""

    start_bytes: int
    peak_bytes: int


class StorageWatch(TorchDispatchMode):
    """Counts the bytes of storages that operations inside the context allocate, and their peaks."""

    def __init__(self) -> None:
        super().__init__()
        self.live_bytes = 0
        self.parts = [Allocation(0, 0)]
        self._known: set[int] = set()

    def begin_part(self) -> None:
        """End the part of the run that lasts until now."""
        self.parts.append(Allocation(self.live_bytes, self.live_bytes))

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        inputs = {tensor.untyped_storage().data_ptr() for tensor in _tensors((args, kwargs))}
        result = func(*args, **(kwargs or {}))
        for tensor in _tensors(result):
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in inputs | self._known:
                self._note(storage)
        return result

    def _note(self, storage: torch.UntypedStorage) -> None:
        num_bytes, identity = storage.nbytes(), storage.data_ptr()
        self._known.add(identity)
        self.live_bytes += num_bytes
        self.parts[-1].peak_bytes = max(self.parts[-1].peak_bytes, self.live_bytes)
        weakref.finalize(storage, self._forget, identity, num_bytes)

    def _forget(self, identity: int, num_bytes: int) -> None:
        self._known.discard(identity)
        self.live_bytes -= num_bytes


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        if not value.is_mkldnn:  # a packed weight: its memory cannot be named, and is nobody's result
            yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _tensors(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _tensors(item)


def peak_bytes(run: Callable[[], object]) -> int:
    """Return the most bytes that `run` holds at one time in tensors it makes."""
    return max(part.peak_bytes for part in layer_parts((), run))


def layer_parts(layers: Sequence[nn.Module], run: Callable[[], object]) -> list[Allocation]:
    """Return what `run` holds before these layers, and from the start of each to that of the next."""
    watch = StorageWatch()
    with ExitStack() as hooks:
        for layer in layers:
            hooks.callback(layer.register_forward_pre_hook(lambda *_: watch.begin_part()).remove)
        with watch:
            run()
    return watch.parts
