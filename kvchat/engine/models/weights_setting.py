"""Weight format: weights as the checkpoint has them, in another dtype, or quantized."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from kvchat.engine.api.config import EngineConfig
from kvchat.engine.models.checkpoints.disk_budget import DiskBudget
from kvchat.engine.models.checkpoints.fp8 import write_expanded
from kvchat.engine.models.checkpoints.model_directory_check import has_fp8_blocks, read_config
from kvchat.engine.models.checkpoints.prepared import (
    EXPANDED,
    PREPARED_DIR,
    QUANTIZED,
    MakeRoom,
    PreparedCheckpoints,
    key_of,
)
from kvchat.engine.models.checkpoints.quantize import write_quantized
from kvchat.engine.models.checkpoints.weight_digests import WeightDigests
from kvchat.engine.models.fingerprint import read_checkpoint
from kvchat.engine.models.load import LoadedModel, load_model
from kvchat.errors import ConfigError

DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightSource:
    """Where weights come from."""

    model_dir: Path
    adapter_dir: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightForm:
    """Files that hold weights in the wanted form, and how they are loaded.

    Args:
        may_map: whether they may stay mapped.
    """

    model_dir: Path
    adapter_dir: Path | None
    dtype: str
    may_map: bool = False

    def load(self, device: torch.device) -> LoadedModel:
        """Raises: ModelError, CapacityError: as `load_model`."""
        return load_model(self.model_dir, self.dtype, device, self.adapter_dir, may_map=self.may_map)


@contextmanager
def in_wanted_form(
    source: WeightSource, config: EngineConfig, digests: WeightDigests, report: Callable[[str], None]
) -> Iterator[WeightForm]:
    """Give the files from which weights are loaded; those made for it alone are gone afterwards.

    Raises:
        ConfigError: the settings contradict each other.
        ModelError, CapacityError: the plain model cannot be loaded or not be quantized.
        StorageError: what is made cannot be written.
    """
    form = WeightForm(model_dir=source.model_dir, adapter_dir=source.adapter_dir, dtype=dtype_of(config))
    is_fp8 = has_fp8_blocks(read_config(source.model_dir))
    if not is_fp8 and config.weights not in QUANTIZED:
        yield form
        return
    with _directory(config) as directory:
        room = DiskBudget(
            cache_dir=config.cache_dir, disk_bytes=config.disk_bytes, encryptor=config.encryptor
        )
        kept = PreparedCheckpoints(directory, digests, room.weights_limit)
        if is_fp8:
            key = key_of(read_checkpoint(source.model_dir, None, digests), EXPANDED, "auto")
            path = kept.get(key, lambda made: write_expanded(source.model_dir, made, report, room.make))
            form = replace(form, model_dir=path, may_map=True)
        if config.weights in QUANTIZED:
            form = _quantized(form, config.weights, kept, report, room.make)
        yield form


def _quantized(
    form: WeightForm,
    weights: str,
    kept: PreparedCheckpoints,
    report: Callable[[str], None],
    make_room: MakeRoom,
) -> WeightForm:
    if "quantization_config" in read_config(form.model_dir):
        raise ConfigError(f"{form.model_dir} is quantized already. Use it with --weights auto.")

    def make(directory: Path) -> None:
        module = replace(form, may_map=True).load(torch.device("cpu")).module
        write_quantized(module, form.model_dir, directory, weights, report, make_room)

    key = key_of(read_checkpoint(form.model_dir, form.adapter_dir, kept.digests), weights, form.dtype)
    return replace(form, model_dir=kept.get(key, make), adapter_dir=None, may_map=True)


def dtype_of(config: EngineConfig) -> str:
    """Return in which type weights are wanted.

    Raises: ConfigError: there is no such form of weights, or not with this type.
    """
    names = ("auto", *DTYPES, *QUANTIZED)
    if config.weights not in names:
        raise ConfigError(f"weights '{config.weights}' are unknown; use one of: {', '.join(names)}")
    dtype = DTYPES.get(config.weights, config.dtype)
    if config.dtype not in ("auto", dtype):
        raise ConfigError(
            f"--weights {config.weights} and --dtype {config.dtype} contradict each other; leave one out"
        )
    return dtype


@contextmanager
def _directory(config: EngineConfig) -> Iterator[Path]:
    if config.cache_dir is not None:
        yield config.cache_dir / PREPARED_DIR
        return
    with TemporaryDirectory(prefix="kvchat-") as directory:  # a mapping outlives its name
        yield Path(directory)
