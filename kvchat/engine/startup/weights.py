"""The weights an engine runs on: loaded once, and exchanged in place for others of the same model.

An exchange is prepared beside the running model, and whatever can fail happens there; carrying it out is
copies alone. Blocks are named by the weights that computed them, so those of the old ones are never found by
the new ones, and are found again when the old ones come back.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from kvchat.engine.api.cache_format import parse_cache_format
from kvchat.engine.api.config import EngineConfig, EngineInfo
from kvchat.engine.api.ids import GroupId
from kvchat.engine.formats.groups_in_format import stored_groups
from kvchat.engine.formats.spec import Group
from kvchat.engine.forward import self_check
from kvchat.engine.forward.kernel_sizes import sizes_in_config, sizes_in_groups
from kvchat.engine.forward.model_route import ModelPlan, Route, choose_route
from kvchat.engine.forward.self_check_cache import SelfCheckCache, checks_of
from kvchat.engine.kernels.kernel_checks import TRIALS, trials_of
from kvchat.engine.kernels.threads import choose_threads
from kvchat.engine.memory.device_pool import DevicePool
from kvchat.engine.memory.disk.open_tier import open_store
from kvchat.engine.memory.disk.store import DiskStore
from kvchat.engine.models.checkpoints.model_directory_check import ADAPTER_CONFIG, check_adapter, check_model
from kvchat.engine.models.checkpoints.weight_digests import WeightDigests
from kvchat.engine.models.fingerprint import Checkpoint, Storage, digest_of, fields_of, read_checkpoint
from kvchat.engine.models.known_fingerprints import remember
from kvchat.engine.models.linear.packed import overwrite, tensors_of
from kvchat.engine.models.load import LoadedModel
from kvchat.engine.models.weights_setting import WeightSource, in_wanted_form
from kvchat.engine.startup.gpu import IN_SIZES, try_gpu
from kvchat.errors import ConfigError, ModelNotFound, ModelUnreadable, UnsupportedModel

DIGESTS_FILE = "weights.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A model in memory, known to compute on the cache what it computes by itself.

    Args:
        checks: what is known of it from earlier starts.
    """

    source: WeightSource
    checkpoint: Checkpoint
    loaded: LoadedModel
    served: ModelPlan
    checks: SelfCheckCache = field(default_factory=SelfCheckCache)


def load_candidate(
    source: WeightSource,
    config: EngineConfig,
    device: torch.device,
    report: Callable[[str], None] = lambda _: None,
) -> Candidate:
    """Load weights and find the route on which they run.

    Args:
        report: is told in words what takes long.

    Raises:
        ModelError: not found, unreadable or not to be served exactly.
        CapacityError: they do not fit.
        ConfigError: the cache format has no form for what the layers keep.

    Effect:
        Sets the number of threads for a model of this size; may read every byte of the weights twice.
    """
    if source.adapter_dir is not None:
        check_adapter(source.adapter_dir)
    digests = WeightDigests(config.cache_dir / DIGESTS_FILE if config.cache_dir else None)
    with in_wanted_form(source, config, digests, report) as form:
        checkpoint = read_checkpoint(form.model_dir, form.adapter_dir, digests)
        loaded = form.load(device)
        if read_checkpoint(form.model_dir, form.adapter_dir, digests) != checkpoint:
            raise ModelUnreadable(f"{source.model_dir} was changed while it was loaded. Try again.")
    digests.save()
    # Before the route is chosen, which is by what kernels compute.
    module: Any = loaded.module
    sizes = module.config.get_text_config()
    try_gpu(device, loaded.dtype, TRIALS, report)
    trials = trials_of(sizes_in_config(sizes, self_check.BLOCK_SIZE))
    try_gpu(device, loaded.dtype, trials, report, IN_SIZES)
    torch.set_num_threads(choose_threads(loaded.weight_bytes, config.threads))
    checks = checks_of(config.cache_dir, checkpoint, loaded)
    served = choose_route(loaded, checks)
    groups = groups_in(served, config.cache_format, config.block_size)
    trials = trials_of(sizes_in_groups(sizes, groups, config.block_size))
    try_gpu(device, loaded.dtype, trials, report, IN_SIZES)
    served = replace(served, groups=groups)
    return Candidate(source=source, checkpoint=checkpoint, loaded=loaded, served=served, checks=checks)


def groups_in(served: ModelPlan, cache_format: str, block_size: int) -> tuple[Group, ...]:
    """Return what is stored of a model's layers in a format.

    Raises:
        ConfigError: there is no such format, or this model cannot be stored in it; the message says why.
    """
    groups = stored_groups(served.groups, cache_format, block_size)
    if served.route is Route.CACHE and groups != served.groups:
        raise ConfigError(
            f"this model attends by itself to all that its cache has, and that cannot be stored as "
            f"'{cache_format}'; use --cache-format exact"
        )
    return groups


def fingerprint_of(candidate: Candidate, config: EngineConfig, pool: DevicePool) -> bytes:
    """Return the digest that the blocks of these weights are named by."""
    storage = Storage(
        route=candidate.served.route,
        dtype=candidate.loaded.dtype,
        cache_format=parse_cache_format(config.cache_format).stored,
        block_size=config.block_size,
        layouts=pool.layouts(),
        rope_layouts=_fields(candidate.served.groups, "rope_layout"),
        states=_fields(candidate.served.groups, "state"),
    )
    fields = fields_of(candidate.checkpoint, storage)
    if config.cache_dir is not None:
        remember(config.cache_dir, fields)
    return digest_of(fields)


def _fields(groups: Sequence[Group], name: str) -> dict[GroupId, str]:
    fields = {group.id: group.spec.fingerprint_fields() for group in groups}
    return {group: of_group[name] for group, of_group in fields.items() if name in of_group}


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """Weights that are ready to take the place of the present ones, and where their blocks are stored.

    `disk_problem` says why they are stored nowhere although a disk tier was wanted.
    """

    candidate: Candidate
    fingerprint: bytes
    store: DiskStore | None
    disk_problem: str | None

    def describe(self, info: EngineInfo, path: Path) -> EngineInfo:
        """Return what the engine is once it runs on these weights."""
        source = self.candidate.source
        return replace(
            info,
            model=info.model if path == source.adapter_dir else str(path),
            model_dir=str(source.model_dir),
            adapter=str(source.adapter_dir.absolute()) if source.adapter_dir else None,
            fingerprint=self.fingerprint.hex(),
            disk_enabled=self.store is not None,
            eos_token_ids=tuple(sorted(self.candidate.loaded.eos_token_ids)),
        )


class EngineWeights:
    """The weights in use."""

    def __init__(self, candidate: Candidate, config: EngineConfig, pool: DevicePool) -> None:
        self._config = config
        self._pool = pool
        # Not the candidate itself: those of later exchanges hold weights that nothing runs on.
        self._module = candidate.loaded.module
        self._dtype = candidate.loaded.dtype
        self._served = candidate.served
        self._source = candidate.source
        self._checkpoint = candidate.checkpoint

    def prepare(self, path: Path) -> Update:
        """Load what is to be exchanged for the present weights. Changes nothing.

        Args:
            path: a model directory, or that of an adapter for the model directory in use.

        Raises:
            ModelError: not found, unreadable, not finite, or of another model than the present weights.
            CapacityError: they do not fit into memory beside the present ones.
        """
        candidate = load_candidate(self._find(path), self._config, torch.device("cpu"))
        self._require_same_model(candidate, path)
        _require_finite(candidate.loaded.module, path)
        digest = fingerprint_of(candidate, self._config, self._pool)
        store, problem = open_store(self._config, self._pool, digest)
        return Update(candidate=candidate, fingerprint=digest, store=store, disk_problem=problem)

    def exchange(self, candidate: Candidate) -> None:
        """Write prepared weights over the present ones."""
        present = dict(tensors_of(self._module))
        for name, tensor in tensors_of(candidate.loaded.module):
            assert isinstance(tensor, Tensor), "weights that are prepared lie as they were read"
            overwrite(present[name], tensor)
        self._source = candidate.source
        self._checkpoint = candidate.checkpoint

    def _find(self, path: Path) -> WeightSource:
        if not path.is_dir():
            raise ModelNotFound(f"There is no directory {path}. Give one that holds a model or an adapter.")
        if (path / ADAPTER_CONFIG).is_file() and not (path / "config.json").is_file():
            return WeightSource(model_dir=self._source.model_dir, adapter_dir=path)
        check_model(path)
        return WeightSource(model_dir=path)

    def _require_same_model(self, candidate: Candidate, path: Path) -> None:
        """Refuse what this engine's cache was not made for."""
        if candidate.checkpoint.config != self._checkpoint.config:
            raise _other(path, "its config.json means something else")
        if candidate.loaded.dtype != self._dtype:
            raise _other(path, f"its weights are {candidate.loaded.dtype}, not {self._dtype}")
        if (candidate.served.route, candidate.served.groups) != (self._served.route, self._served.groups):
            raise _other(path, "its layers keep something else")
        present, given = _forms(self._module), _forms(candidate.loaded.module)
        differing = sorted(
            name for name in present.keys() | given.keys() if present.get(name) != given.get(name)
        )
        if differing:
            raise _other(path, f"{differing[0]} has another form")


def _forms(module: nn.Module) -> dict[str, tuple[torch.Size, torch.dtype]]:
    """Return the form of every tensor, however it lies in memory."""
    return {name: (tensor.shape, tensor.dtype) for name, tensor in tensors_of(module)}


def _require_finite(module: nn.Module, path: Path) -> None:
    for name, parameter in module.named_parameters():
        if not bool(parameter.isfinite().all()):
            raise ModelUnreadable(
                f"{path}: {name} is not finite (NaN or infinite). The weights stay as they are."
            )


def _other(path: Path, reason: str) -> UnsupportedModel:
    return UnsupportedModel(
        f"{path} is another model than the one that runs: {reason}. Start kvchat with it instead."
    )
