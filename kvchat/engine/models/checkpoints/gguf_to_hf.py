"""From a GGUF file to a checkpoint directory: quantized weights stay so, everything else is expanded.

What config and tokenizer are is read by transformers. The file is only ever parsed, and nothing in it is run.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from gguf import ReaderTensor
from torch import Tensor, nn

from kvchat.engine.kernels.quantized_linear import Coding, QuantizedWeight
from kvchat.engine.models.checkpoints.gguf_config import RECURRENT, read_config
from kvchat.engine.models.checkpoints.gguf_file import INSTEAD, GgufFile, expanded, shape
from kvchat.engine.models.checkpoints.gguf_layout import Layout, Source
from kvchat.engine.models.checkpoints.gguf_repack import FORMATS, moves_groups, quantized
from kvchat.engine.models.checkpoints.prepared import MakeRoom
from kvchat.engine.models.checkpoints.quantize import write_checkpoint
from kvchat.engine.models.linear.quantized import output_name
from kvchat.engine.models.load import BUILD_LOCK
from kvchat.errors import ModelUnreadable

Report = Callable[[str], None]

_EMBEDDING = "token_embd.weight"
_IN_FLOAT32 = "e_score_correction_bias"
"""What transformers keeps so, whatever a model's dtype: rounding it would move tokens to other experts."""
_TOKENIZER = "tokenizer.json"
_TOKENIZER_SHARE = 4
"""What a tokenizer takes as a file of its own, per byte of the head of a GGUF file that has it."""


def write_converted(
    file: GgufFile, directory: Path, report: Report, make_room: MakeRoom = lambda _: None
) -> None:
    """Write config, tokenizer and weights of a GGUF file into a directory.

    Args:
        make_room: called before the first of them is written.

    Raises:
        ModelUnreadable: tensors are missing or of other sizes than the config says, or there is no tokenizer.
        UnsupportedModel: its rotary embedding or one of its formats is not known.
    """
    config = read_config(file)
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
            tensors[name] = tensor if name.endswith(_IN_FLOAT32) else tensor.to(config.dtype)
    make_room(sum(tensor.nbytes for tensor in tensors.values()) + _tokenizer_bytes(file))
    written = config.to_dict() | {"architectures": [type(module).__name__]}
    if output_name(module) in codings:
        written["tie_word_embeddings"] = False
    write_checkpoint(directory, tensors, written, codings)
    _write_tokenizer(file, directory)


def _empty_module(file: GgufFile, config: Any) -> nn.Module:
    """Return the model that the header tells of, without weights."""
    try:
        with BUILD_LOCK, torch.device("meta"):
            module: nn.Module = transformers.AutoModelForCausalLM.from_config(config)
            return module
    except Exception as error:  # whatever sizes and ids of a damaged header make the library raise
        raise ModelUnreadable(f"{file.path} tells of no model: {type(error).__name__}: {error}") from error


def _named(file: GgufFile, module: Any, report: Report) -> Iterator[tuple[str, Tensor | QuantizedWeight]]:
    """Yield what the file holds for every parameter of a model, by the parameter's name.

    A last layer that shares the embedding's numbers gets its own, quantized, where they are: the embedding is
    expanded, and reading all of that for every token would take longer than the other layers together.
    """
    layout = Layout(file, module.config)
    there = file.tensors()
    kept = module.state_dict().keys()
    parameters = dict(module.named_parameters())
    parameters |= {name: buffer for name, buffer in module.named_buffers() if name in kept}
    for count, (name, parameter) in enumerate(parameters.items()):
        try:
            source = layout.source(name, parameter.shape[0], parameter.shape[-1])
        except ValueError as error:  # sizes of a damaged header
            raise ModelUnreadable(f"{file.path} tells of no {name}: {error}. {INSTEAD}") from error
        tensors = [there[tensor] for tensor in source.names if tensor in there]
        if len(tensors) < len(source.names) or not _fits(tensors, parameter):
            what = "no tensor" if not tensors else f"a tensor of {list(shape(tensors[0]))}"
            raise ModelUnreadable(
                f"{file.path} has {what} for {name}, which has {list(parameter.shape)} numbers. {INSTEAD}"
            )
        report(f"reading {file.path.name}, {(count + 1) / len(parameters):.0%}; only this once")
        yield name, _converted(module, name, parameter, tensors, source)
    embedding = there[_EMBEDDING]
    output = f"{output_name(module)}.weight"
    if module.config.tie_word_embeddings and embedding.tensor_type in FORMATS and layout.stays(output):
        yield output, quantized(np.asarray(embedding.data), embedding.tensor_type)


def _fits(tensors: list[ReaderTensor], parameter: Tensor) -> bool:
    """Sizes of one are left out or added at will; those of two and more have their inputs last."""
    is_whole = sum(int(tensor.n_elements) for tensor in tensors) == parameter.numel()
    return is_whole and (parameter.dim() == 1 or shape(tensors[0])[-1] == parameter.shape[-1])


def _converted(
    module: nn.Module, name: str, parameter: Tensor, tensors: list[ReaderTensor], source: Source
) -> Tensor | QuantizedWeight:
    layer = module.get_submodule(name.rpartition(".")[0])
    kind = tensors[0].tensor_type
    is_linear = type(layer) is nn.Linear and name.endswith(".weight") and source.stays
    is_quantized = kind in FORMATS and all(tensor.tensor_type is kind for tensor in tensors)
    if is_linear and is_quantized and (source.columns is None or moves_groups(source.columns, kind)):
        data = np.concatenate([np.asarray(tensor.data) for tensor in tensors])
        return quantized(data if source.rows is None else data[source.rows], kind, source.columns)
    parts = [expanded(tensor) for tensor in tensors]
    numbers = torch.cat(parts, dim=-2) if len(parts) > 1 else parts[0]
    numbers = numbers.reshape(parameter.shape)
    if source.rows is not None:
        numbers = numbers[torch.from_numpy(source.rows)]
    if source.columns is not None:
        numbers = numbers[:, torch.from_numpy(source.columns)]
    if source.undo is not None:
        numbers = source.undo(numbers)
    if not numbers.isfinite().all():
        raise ModelUnreadable(f"{name} has numbers that are not finite. Fetch the GGUF file again.")
    return numbers


def _tokenizer_bytes(file: GgufFile) -> int:
    """Return about what the tokenizer takes that is written: the one beside the file, or the one in it."""
    beside = file.path.with_name(_TOKENIZER)
    return 2 * beside.stat().st_size if beside.is_file() else _TOKENIZER_SHARE * file.reader.data_offset


def _write_tokenizer(file: GgufFile, directory: Path) -> None:
    """Write the tokenizer that lies beside the file; else the one in it, as transformers understands it."""
    beside = file.path.parent
    is_beside = (beside / _TOKENIZER).is_file()
    try:
        is_known = is_beside or file.architecture not in RECURRENT
        reader = transformers.AutoTokenizer if is_known else transformers.PreTrainedTokenizerFast
        tokenizer = reader.from_pretrained(
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
