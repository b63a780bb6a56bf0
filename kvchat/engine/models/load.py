"""A Hugging Face causal language model from a directory, unmodified, with our attention."""

import ctypes
import logging
import mmap
import re
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any, Final

import torch
import transformers
from torch import Tensor, nn

from kvchat.engine.models.checkpoints.model_directory_check import (
    adapter_weights,
    check_adapter,
    check_safetensors,
    read_config,
)
from kvchat.engine.models.latent import check_latent_sizes
from kvchat.errors import ConfigError, KvchatError, ModelUnreadable, OutOfMemory, UnsupportedModel

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
DEFAULT_CONTEXT = 2048
"""Of models that do not say how long a text may be, such as those with biases instead of positions."""

LONGEST_CONTEXT = 2**24
"""No model was trained on more tokens: a config that says so is wrong, and block tables cost memory."""
BUILD_LOCK: Final = Lock()
"""Held while a library builds a model or fills it with weights.

transformers changes torch for the whole process meanwhile (default dtype, initialisers, `linspace`). Each
load puts back what it found; of two at once, the later would put back what the other had changed.
"""
_NUMBER = re.compile(r"\.\d+")
_MAPS = Path("/proc/self/maps")
_PAGE = mmap.PAGESIZE
_DONT_NEED = 4  # Linux's MADV_DONTNEED; a page of a file is read again if it is touched again

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model in memory and what its config says about ids and length."""

    module: nn.Module
    dtype: str
    vocab_size: int
    num_layers: int
    max_context: int
    eos_token_ids: frozenset[int]

    @property
    def weight_bytes(self) -> int:
        """Of parameters and of what takes their place, such as quantized weights."""
        return sum(tensor.nbytes for tensor in (*self.module.parameters(), *self.module.buffers()))


def choose_device(name: str) -> torch.device:
    """Return the device for `auto`, `cpu`, `cuda` or `mps`.

    Raises:
        ConfigError: no such device here.
    """
    available = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if name == "auto":
        name = next(kind for kind in ("cuda", "mps", "cpu") if available[kind])
    kind = name.split(":")[0]
    if not available.get(kind, False):
        here = ", ".join(kind for kind, there in available.items() if there)
        raise ConfigError(f"there is no device '{name}' here; use one of: auto, {here}")
    return torch.device(name)


def load_model(
    model_dir: Path,
    dtype: str,
    device: torch.device,
    adapter_dir: Path | None = None,
    *,
    may_map: bool = False,
) -> LoadedModel:
    """Load the model in `model_dir`; only safetensors, no code from the directory.

    Args:
        dtype: auto (as the checkpoint says) or a name of DTYPES.
        adapter_dir: a LoRA to be merged into the weights.
        may_map: whether weights may stay mapped from their files, because nobody writes over those.

    Raises:
        ModelUnreadable: files are missing or damaged, or say different things.
        UnsupportedModel: the class is unknown, or the adapter is not for this model.
        OutOfMemory: the weights do not fit.
    """
    if dtype != "auto" and dtype not in DTYPES:
        raise ConfigError(f"dtype '{dtype}' is unknown; use auto, {', '.join(DTYPES)}")
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()
    read_config(model_dir)
    config = _read(
        lambda: transformers.AutoConfig.from_pretrained(
            model_dir, local_files_only=True, trust_remote_code=False
        ),
        model_dir,
    )
    num_layers = config.get_text_config().num_hidden_layers
    if num_layers < 1:
        raise ModelUnreadable(f"{model_dir / 'config.json'} says that the model has {num_layers} layers.")
    check_latent_sizes(config.get_text_config(), model_dir / "config.json")
    with BUILD_LOCK:
        module, info = _read(
            lambda: class_for(config).from_pretrained(
                model_dir,
                config=config,
                dtype=DTYPES.get(dtype, "auto"),
                attn_implementation="eager",  # every class has it; the route chosen later may set another
                use_safetensors=True,
                local_files_only=True,
                trust_remote_code=False,  # without this, transformers asks on the terminal whether to run it
                output_loading_info=True,
                ignore_mismatched_sizes=True,  # and refused below, with the name of the weight
            ),
            model_dir,
        )
    _check_weights(info, model_dir)
    _check_layers(module, info, model_dir)
    if adapter_dir is not None:
        with BUILD_LOCK:
            module = merge_adapter(module, adapter_dir)  # before the move: the same sum on any device
    module.eval().requires_grad_(False)
    if device.type == "cpu" and not may_map:
        own_memory((*module.parameters(), *module.buffers()))
    module.to(device)
    text_config = module.config.get_text_config()
    return LoadedModel(
        module=module,
        dtype=str(module.dtype).removeprefix("torch."),
        vocab_size=text_config.vocab_size,
        num_layers=text_config.num_hidden_layers,
        max_context=_max_context(text_config),
        eos_token_ids=_eos_ids(module, text_config),
    )


def class_for(config: Any) -> Any:
    """Return by which of transformers' classes a model is found.

    Text models are in the list of causal ones, but for Mistral 4, which is only in that of models that may be
    shown pictures.
    """
    elsewhere = transformers.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING.get(type(config), None)
    is_known = type(config) in transformers.MODEL_FOR_CAUSAL_LM_MAPPING
    if not is_known and elsewhere is not None and elsewhere.__name__.endswith("ForCausalLM"):
        return transformers.AutoModelForImageTextToText
    return transformers.AutoModelForCausalLM


def _read(load: Callable[[], Any], model_dir: Path) -> Any:
    try:
        return load()
    except (MemoryError, torch.OutOfMemoryError) as error:
        raise OutOfMemory(f"the weights in {model_dir} do not fit into memory") from error
    except ValueError as error:
        if "not recognize" in str(error) or "Unrecognized" in str(error):
            raise UnsupportedModel(
                f"{model_dir}: this architecture is not a known causal language model"
            ) from error
        raise ModelUnreadable(f"{model_dir} cannot be loaded: {error}") from error
    except Exception as error:  # whatever a damaged directory makes the library raise
        raise ModelUnreadable(f"{model_dir} cannot be loaded: {type(error).__name__}: {error}") from error


def _check_weights(info: dict[str, Any], model_dir: Path) -> None:
    """Refuse a checkpoint that lacks weights of the model: the library would make them up at random."""
    for name, in_file, in_model in sorted(info["mismatched_keys"]):
        raise ModelUnreadable(
            f"{model_dir}: {name} is {list(in_file)} in the weights and {list(in_model)} by config.json. "
            "Fetch the model again, or use `-m starter`."
        )
    lacking = sorted(info["missing_keys"])
    if lacking:
        raise ModelUnreadable(
            f"{model_dir} lacks {len(lacking)} of the model's weights, {lacking[0]} for example. "
            "Fetch the model again, or use `-m starter`."
        )


def _check_layers(module: nn.Module, info: dict[str, Any], model_dir: Path) -> None:
    """Refuse a checkpoint that has more layers, or experts, than its config says: the library drops them."""
    known = {_NUMBER.sub(".#", name) for name in module.state_dict()}
    dropped = sorted(name for name in info["unexpected_keys"] if _NUMBER.sub(".#", name) in known)
    if dropped:
        raise ModelUnreadable(
            f"{model_dir} has weights of more layers than its config.json says, {dropped[0]} for example. "
            "Fetch the model again, or use `-m starter`."
        )


def _max_context(text_config: Any) -> int:
    """Return the longest conversation: the model's own, or as far as its rotary embedding stays the same."""
    for name in (
        "max_position_embeddings",
        "n_positions",
        "max_sequence_length",
        "max_seq_len",
        "seq_length",
        "max_target_positions",
    ):
        length = getattr(text_config, name, None)
        if isinstance(length, int) and length > 0:
            return min(length, _fixed_rope_len(text_config, length), LONGEST_CONTEXT)
    log.warning("this model's config does not say how long a conversation may be; %d tokens", DEFAULT_CONTEXT)
    return DEFAULT_CONTEXT


def _fixed_rope_len(text_config: Any, length: int) -> int:
    """Return how long a sequence may get before the rotary embedding changes; `length` if it never does.

    A dynamic embedding (NTK) is rescaled behind `max_position_embeddings`, where conversations end anyway. A
    longrope embedding takes other factors behind the length of its first training: keys cached before would
    be wrong from there on, and transformers itself then computes everything again.
    """
    parameters = (
        getattr(text_config, "rope_parameters", None) or getattr(text_config, "rope_scaling", None) or {}
    )
    nested = [value for value in parameters.values() if isinstance(value, dict)]
    for rope in nested or [parameters]:
        if rope.get("rope_type", "default") != "longrope":
            continue
        first: Any = rope.get("original_max_position_embeddings") or getattr(
            text_config, "original_max_position_embeddings", length
        )
        length = min(length, int(first))
        log.warning("conversations end at %d tokens, where this model's rotary embedding changes", length)
    return length


def _eos_ids(module: Any, text_config: Any) -> frozenset[int]:
    """Return every id that ends the model's turn: one, several or none per config."""
    found: set[int] = set()
    for config in (getattr(module, "generation_config", None), text_config):
        ids = getattr(config, "eos_token_id", None)
        if isinstance(ids, int):
            found.add(ids)
        elif ids is not None:
            found.update(ids)
    return frozenset(found)


def merge_adapter(module: Any, adapter_dir: Path) -> Any:
    """Return the model with an adapter's weights added to its own.

    Raises:
        ModelError: no LoRA, damaged, a pickle, made for another model, or peft is not installed.
        OutOfMemory: the sum does not fit.

    Effect:
        Changes `module`, which is worthless after an error, and meanwhile torch for the whole process: the
        caller holds `BUILD_LOCK`.
    """
    check_adapter(adapter_dir)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what does not fit is checked below, by name
            return _merged(module, adapter_dir)
    except KvchatError:
        raise
    except (MemoryError, torch.OutOfMemoryError) as error:
        raise OutOfMemory(f"the adapter {adapter_dir} does not fit into memory beside its model") from error
    except Exception as error:  # whatever peft says to an adapter of another model
        raise _no_fit(adapter_dir, f"{type(error).__name__}: {error}") from error


def _merged(module: Any, adapter_dir: Path) -> Any:
    """Refuses an adapter of which a part has no place in the model, or that leaves a place empty."""
    import peft

    model = peft.PeftModel.from_pretrained(module, adapter_dir, torch_device="cpu", local_files_only=True)
    wanted = set(peft.get_peft_model_state_dict(model, save_embedding_layers=False))
    given = check_safetensors(adapter_weights(adapter_dir)).keys()
    if missing := sorted(wanted - given):
        raise _no_fit(adapter_dir, f"it lacks {missing[0]}")
    if foreign := sorted(given - wanted - model.state_dict().keys()):
        raise _no_fit(adapter_dir, f"the model has no place for {foreign[0]}")
    return model.merge_and_unload(safe_merge=True)


def _no_fit(adapter_dir: Path, reason: str) -> UnsupportedModel:
    reason = reason.partition("\n")[0][:300]
    return UnsupportedModel(
        f"the adapter {adapter_dir} does not fit this model: {reason}. Give the model it was trained on."
    )


def own_memory(tensors: Iterable[Tensor]) -> None:
    """Copy tensors out of their files, which are mapped: whoever writes over one, or cuts it short, would
    change them under the engine, or end it.

    Effect:
        What has been copied leaves memory at once, where the system says which files are mapped.
    """
    files = _mapped_files()
    for tensor in tensors:
        mapped = tensor.data
        tensor.data = mapped.clone()
        _let_go(mapped, files)


def _mapped_files() -> list[tuple[int, int]]:
    """Return the addresses [start, end) of mapped weight files; nothing where the system does not say."""
    try:
        lines = _MAPS.read_text().splitlines()
    except OSError:
        return []
    spans = [line.split(maxsplit=1)[0].split("-") for line in lines if line.endswith(".safetensors")]
    return [(int(start, 16), int(end, 16)) for start, end in spans]


def _let_go(tensor: Tensor, files: Iterable[tuple[int, int]]) -> None:
    """Drop the pages that hold nothing but this tensor."""
    start, end = tensor.data_ptr(), tensor.data_ptr() + tensor.nbytes
    if not any(first <= start and end <= last for first, last in files):
        return
    start, end = -(-start // _PAGE) * _PAGE, end // _PAGE * _PAGE
    if start < end:
        ctypes.CDLL(None).madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), _DONT_NEED)
