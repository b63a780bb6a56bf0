"""From a GGUF file to a checkpoint directory: quantized weights stay so, everything else is expanded.

What config and tokenizer are is read by transformers. The file is only ever parsed, and nothing in it is run.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from gguf import MODEL_ARCH, GGUFReader, ReaderTensor, dequantize, get_tensor_name_map
from safetensors.torch import save_file
from torch import Tensor, nn

from kvchat.engine.kernels.quantized_linear import Coding, QuantizedWeight
from kvchat.engine.models.checkpoints.gguf_repack import FORMATS, quantized
from kvchat.engine.models.checkpoints.prepared import WEIGHTS_FILE, MakeRoom
from kvchat.engine.models.checkpoints.transformers_quantizer import describe
from kvchat.engine.models.linear.quantized import output_name
from kvchat.engine.models.load import BUILD_LOCK
from kvchat.errors import ModelUnreadable, UnsupportedModel

Report = Callable[[str], None]

_ARCHITECTURES = {
    "llama": MODEL_ARCH.LLAMA,
    "qwen2": MODEL_ARCH.QWEN2,
    "qwen3": MODEL_ARCH.QWEN3,
    "phi3": MODEL_ARCH.PHI3,
    "gemma2": MODEL_ARCH.GEMMA2,
    "gemma3": MODEL_ARCH.GEMMA3,
    "lfm2": MODEL_ARCH.LFM2,
}
_ROPE_FACTORS = "rope_freqs.weight"
_EMBEDDING = "token_embd.weight"
_TOKENIZER = "tokenizer.json"
_TOKENIZER_SHARE = 4
"""What a tokenizer takes as a file of its own, per byte of the head of a GGUF file that has it."""
_INSTEAD = "Use a safetensors version of this model."


@dataclass(frozen=True, slots=True)
class GgufFile:
    """A file whose header has been read."""

    path: Path
    reader: GGUFReader

    @property
    def architecture(self) -> str:
        return str(self.value("general.architecture"))

    def value(self, key: str) -> Any:
        """Return a value of the metadata, None if it is not there."""
        field = self.reader.get_field(key)
        return None if field is None else field.contents()

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
    if architecture not in _ARCHITECTURES:
        raise UnsupportedModel(
            f"{path} holds a {architecture!r} model. GGUF files are read for {', '.join(_ARCHITECTURES)}; "
            "use a safetensors version of this one."
        )
    return file


def write_checkpoint(
    file: GgufFile, directory: Path, report: Report, make_room: MakeRoom = lambda _: None
) -> None:
    """Write config, tokenizer and weights of a GGUF file into a directory.

    Args:
        make_room: called before the first of them is written.

    Raises:
        ModelUnreadable: tensors are missing or of other sizes than the config says, or there is no tokenizer.
        UnsupportedModel: its rotary embedding or one of its formats is not known.
    """
    config = _config(file)
    module = _empty_module(file, config)
    codings: dict[str, Coding] = {}
    tensors: dict[str, Tensor] = {}
    for name, tensor in _named(file, module, report):
        if isinstance(tensor, QuantizedWeight):
            layer = name.removesuffix(".weight")
            codings[layer] = tensor.coding
            parts = {"codes": tensor.codes, "scales": tensor.scales, "minima": tensor.minima}
            tensors |= {f"{layer}.{part}": value for part, value in parts.items() if value is not None}
        else:
            tensors[name] = tensor.to(config.dtype)
    make_room(sum(tensor.nbytes for tensor in tensors.values()) + _tokenizer_bytes(file))
    save_file(tensors, directory / WEIGHTS_FILE, {"format": "pt"})
    written = config.to_dict() | {"architectures": [type(module).__name__]}
    if output_name(module) in codings:
        written["tie_word_embeddings"] = False
    if codings:
        written["quantization_config"] = describe(codings)
    (directory / "config.json").write_text(json.dumps(written, indent=1), encoding="utf-8")
    _write_tokenizer(file, directory)


def _empty_module(file: GgufFile, config: Any) -> nn.Module:
    """Return the model that the header tells of, without weights."""
    try:
        with BUILD_LOCK, torch.device("meta"):
            module: nn.Module = transformers.AutoModelForCausalLM.from_config(config)
            return module
    except Exception as error:  # whatever sizes and ids of a damaged header make the library raise
        raise ModelUnreadable(f"{file.path} tells of no model: {type(error).__name__}: {error}") from error


def _config(file: GgufFile) -> Any:
    try:
        config = transformers.AutoConfig.from_pretrained(
            file.path.parent, gguf_file=file.path.name, local_files_only=True, trust_remote_code=False
        )
    except Exception as error:  # whatever a damaged file makes the library raise
        raise ModelUnreadable(f"{file.path} cannot be read: {type(error).__name__}: {error}") from error
    architecture = file.architecture
    if (head_dim := file.value(f"{architecture}.attention.key_length")) is not None:
        config.head_dim = head_dim
    if hasattr(config, "norm_eps"):
        config.norm_eps = file.value(f"{architecture}.attention.layer_norm_rms_epsilon")
    if (factors := file.tensors().get(_ROPE_FACTORS)) is not None:
        _scale_rope(config, _expanded(factors))
    elif file.value(f"{architecture}.rope.scaling.type") not in (None, "none"):
        raise UnsupportedModel(
            f"{file.path} scales its rotary embedding in a way that is not read. {_INSTEAD}"
        )
    config.dtype = _dtype(file)
    return config


def _scale_rope(config: Any, factors: Tensor) -> None:
    """Say in transformers' words that every frequency is divided by a factor of its own, at all lengths."""
    length = config.max_position_embeddings
    config.rope_parameters = {
        "rope_type": "longrope",
        "rope_theta": config.rope_parameters["rope_theta"],
        "short_factor": factors.tolist(),
        "long_factor": factors.tolist(),
        "factor": 1.0,
        "attention_factor": 1.0,
        "original_max_position_embeddings": length,
    }


def _dtype(file: GgufFile) -> torch.dtype:
    """Return the dtype of everything that is not quantized: the file's own, bfloat16 beside codes."""
    kinds = {tensor.tensor_type.name for tensor in file.reader.tensors if len(tensor.shape) > 1}
    if kinds <= {"F32"}:
        return torch.float32
    return torch.float16 if kinds <= {"F16", "F32"} else torch.bfloat16


def _named(file: GgufFile, module: Any, report: Report) -> Iterator[tuple[str, Tensor | QuantizedWeight]]:
    """Yield what the file holds for every parameter of a model, by the parameter's name.

    A last layer that shares the embedding's numbers gets its own, quantized, where they are: the embedding is
    expanded, and reading all of that for every token would take longer than the other layers together.
    """
    names = get_tensor_name_map(_ARCHITECTURES[file.architecture], module.config.num_hidden_layers)
    there = file.tensors()
    parameters = dict(module.named_parameters())
    for count, (name, parameter) in enumerate(parameters.items()):
        stem, _, kind = name.rpartition(".")
        found = there.get(f"{names.get_name(stem)}.{kind}")
        # llama.cpp leaves out the one input channel of a convolution by channels.
        shape = tuple(parameter.squeeze(1).shape if parameter.dim() == 3 else parameter.shape)
        if found is None or tuple(reversed(found.shape.tolist())) != shape:
            what = "no tensor" if found is None else f"a tensor of {list(reversed(found.shape.tolist()))}"
            raise ModelUnreadable(
                f"{file.path} has {what} for {name}, which has {list(parameter.shape)} numbers. {_INSTEAD}"
            )
        report(f"reading {file.path.name}, {(count + 1) / len(parameters):.0%}; only this once")
        tensor = _converted(file, module, name, found)
        yield name, tensor.view(parameter.shape) if isinstance(tensor, Tensor) else tensor
    embedding = there[_EMBEDDING]
    if module.config.tie_word_embeddings and embedding.tensor_type in FORMATS:
        yield f"{output_name(module)}.weight", quantized(np.asarray(embedding.data), embedding.tensor_type)


def _converted(
    file: GgufFile, module: nn.Module, name: str, tensor: ReaderTensor
) -> Tensor | QuantizedWeight:
    layer = module.get_submodule(name.rpartition(".")[0])
    order = _rows(file.architecture, module.config, tensor)
    if type(layer) is nn.Linear and name.endswith(".weight") and tensor.tensor_type in FORMATS:
        data = np.asarray(tensor.data)
        return quantized(data if order is None else data[order], tensor.tensor_type)
    numbers = _expanded(tensor)
    if order is not None:
        numbers = numbers[torch.from_numpy(order)]
    # llama.cpp keeps the whole factor of a norm, Gemma's classes what is above one.
    return numbers - 1 if file.architecture.startswith("gemma") and "norm" in tensor.name else numbers


def _rows(architecture: str, config: Any, tensor: ReaderTensor) -> Any:
    """Return the order of a projection's rows: llama.cpp turns neighbours, transformers halves of a head."""
    heads = {"attn_q.": config.num_attention_heads, "attn_k.": config.num_key_value_heads}
    num_heads = next((count for part, count in heads.items() if part in tensor.name), None)
    if architecture != "llama" or num_heads is None:
        return None
    num_rows = int(tensor.shape[-1])
    return np.arange(num_rows).reshape(num_heads, -1, 2).swapaxes(1, 2).reshape(num_rows)


def _expanded(tensor: ReaderTensor) -> Tensor:
    try:
        with np.errstate(all="ignore"):  # infinite scales are refused below
            numbers = dequantize(tensor.data, tensor.tensor_type)
    except NotImplementedError as error:
        raise UnsupportedModel(f"the format {tensor.tensor_type.name} is not read. {_INSTEAD}") from error
    if not np.isfinite(numbers).all():
        raise ModelUnreadable(f"{tensor.name} has numbers that are not finite. Fetch the GGUF file again.")
    return torch.from_numpy(np.array(numbers, dtype=np.float32)).reshape(
        tuple(reversed(tensor.shape.tolist()))
    )


def _tokenizer_bytes(file: GgufFile) -> int:
    """Return about what the tokenizer takes that is written: the one beside the file, or the one in it."""
    beside = file.path.with_name(_TOKENIZER)
    return 2 * beside.stat().st_size if beside.is_file() else _TOKENIZER_SHARE * file.reader.data_offset


def _write_tokenizer(file: GgufFile, directory: Path) -> None:
    """Write the tokenizer that lies beside the file; else the one in it, as transformers understands it."""
    beside = file.path.parent
    is_beside = (beside / _TOKENIZER).is_file()
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(
            beside,
            **({} if is_beside else {"gguf_file": file.path.name}),
            local_files_only=True,
            trust_remote_code=False,
        )
        if tokenizer.chat_template is None:
            tokenizer.chat_template = file.value("tokenizer.chat_template")
        tokenizer.save_pretrained(directory)
    except Exception as error:  # whatever a damaged file makes the library raise
        raise ModelUnreadable(
            f"the tokenizer in {file.path} cannot be read ({error}). Put the model's {_TOKENIZER} beside it."
        ) from error
    if not (directory / _TOKENIZER).is_file():
        raise ModelUnreadable(f"{file.path} has no tokenizer. Put the model's {_TOKENIZER} beside it.")
