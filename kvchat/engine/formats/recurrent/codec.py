"""States as numbers: each tensor by itself, to be compared."""

from collections.abc import Iterator

from torch import Tensor

from kvchat.engine.formats.attention_metadata import TORCH_DTYPES
from kvchat.engine.formats.full.codec import Codec
from kvchat.engine.formats.recurrent.spec import StateSpec


class StateCodec(Codec):
    """The tensors in the bytes of one layer's state."""

    def __init__(self, spec: StateSpec) -> None:
        self._spec = spec

    def numbers(self, stored: Tensor, region: str) -> Iterator[Tensor]:
        for tensor, start in zip(self._spec.tensors, self._spec.starts, strict=True):
            run = stored.flatten()[start : start + tensor.num_bytes]
            yield run.clone().view(TORCH_DTYPES[tensor.dtype])
