"""GGUF file: its header, and the architectures that are read."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import MODEL_ARCH, MODEL_ARCH_NAMES, GGUFReader, ReaderTensor, dequantize
from torch import Tensor

from kvchat.errors import ModelUnreadable, UnsupportedModel

_READ = (
    *("llama", "qwen2", "qwen3", "phi3", "gemma2", "gemma3", "lfm2"),
    *("qwen35", "qwen35moe", "qwen3next", "granitehybrid", "falcon-h1"),
    *("nemotron_h", "nemotron_h_moe", "mamba2", "mamba", "jamba"),
)
ARCHITECTURES = {name: arch for arch, name in MODEL_ARCH_NAMES.items() if name in _READ}
"""Architectures that are read, by llama.cpp's names."""
INSTEAD = "Use a safetensors version of this model."


@dataclass(frozen=True, slots=True)
class GgufFile:
    """A file whose header has been read."""

    path: Path
    reader: GGUFReader

    @property
    def architecture(self) -> str:
        return str(self.value("general.architecture"))

    @property
    def arch(self) -> MODEL_ARCH:
        return ARCHITECTURES[self.architecture]

    def value(self, key: str) -> Any:
        """Return a value of the metadata, None if it is not there."""
        field = self.reader.get_field(key)
        return None if field is None else field.contents()

    def own(self, key: str) -> Any:
        """Return a value under the architecture's name, None if it is not there."""
        return self.value(f"{self.architecture}.{key}")

    def tensors(self) -> dict[str, ReaderTensor]:
        return {tensor.name: tensor for tensor in self.reader.tensors}


def open_gguf(path: Path) -> GgufFile:
    """Read a file's header.

    Raises:
        ModelUnreadable: it is no whole GGUF file.
        UnsupportedModel: of another architecture than can be read.
    """
    try:
        file = GgufFile(path, GGUFReader(path))
        architecture = file.architecture
    except (OSError, ValueError, KeyError, IndexError, TypeError, MemoryError, OverflowError) as error:
        raise ModelUnreadable(f"{path} is not a whole GGUF file: {error}. Fetch it again.") from error
    if architecture not in ARCHITECTURES:
        raise UnsupportedModel(
            f"{path} holds a {architecture!r} model. GGUF files are read for {', '.join(_READ)}; "
            "use a safetensors version of this one."
        )
    return file


def expanded(tensor: ReaderTensor) -> Tensor:
    """Return a tensor's numbers in float32.

    Raises:
        ModelUnreadable: some are not finite.
        UnsupportedModel: the format is not known.
    """
    try:
        with np.errstate(all="ignore"):  # infinite scales are refused below
            numbers = dequantize(tensor.data, tensor.tensor_type)
    except NotImplementedError as error:
        raise UnsupportedModel(f"the format {tensor.tensor_type.name} is not read. {INSTEAD}") from error
    if not np.isfinite(numbers).all():
        raise ModelUnreadable(f"{tensor.name} has numbers that are not finite. Fetch the GGUF file again.")
    return torch.from_numpy(np.array(numbers, dtype=np.float32)).reshape(shape(tensor))


def shape(tensor: ReaderTensor) -> tuple[int, ...]:
    """Return the sizes of a tensor as torch orders them."""
    return tuple(reversed(tensor.shape.tolist()))
