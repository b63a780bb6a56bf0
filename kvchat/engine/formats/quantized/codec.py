"""Quantized blocks: made of exact ones, and dequantized to be compared."""

from collections.abc import Iterator

from torch import Tensor

from kvchat.engine.formats.attention_metadata import LayerPool
from kvchat.engine.formats.full.codec import Codec, relative_norm
from kvchat.engine.formats.quantized.attend import quantized_pool
from kvchat.engine.formats.quantized.spec import QuantizedSpec
from kvchat.engine.kernels.quantized_attention import quantize_blocks
from kvchat.engine.kernels.quantized_attention.args import QuantizedStep
from kvchat.engine.kernels.quantized_kv.reference import dequantize


class QuantizedCodec(Codec):
    """Codec of quantized blocks. They are compared as a whole: in few bits, the least difference can move one
    number by a large part of its size.
    """

    def __init__(self, spec: QuantizedSpec) -> None:
        self._spec = spec

    def copy_blocks(self, target: LayerPool, source: LayerPool, sources: Tensor, targets: Tensor) -> None:
        quantize_blocks(
            source.keys, source.values, quantized_pool(target), QuantizedStep((), sources, targets)
        )

    def numbers(self, stored: Tensor, region: str) -> Iterator[Tensor]:
        record = self._spec.key_record if region.endswith(".k") else self._spec.value_record
        yield dequantize(stored.transpose(0, 1), record)

    def deviation(self, left: Tensor, right: Tensor) -> float:
        return relative_norm(left, right)
