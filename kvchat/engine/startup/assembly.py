"""Config → engine: load the model, see what its layers keep, size the pools, put the parts together."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from kvchat.engine.api.cache_format import canonical_cache_format, parse_cache_format
from kvchat.engine.api.config import SPECULATE, EngineConfig, EngineInfo
from kvchat.engine.api.ids import GroupId
from kvchat.engine.api.view import require_steps
from kvchat.engine.cache.device_tier import DeviceTier
from kvchat.engine.cache.eviction import Eviction
from kvchat.engine.cache.host_tier import HostTier
from kvchat.engine.cache.manager import CacheManager
from kvchat.engine.formats.attention_metadata import TORCH_DTYPES
from kvchat.engine.formats.format_table import Resources, metadata_builders
from kvchat.engine.formats.pool_sizing import LEAST_STATES, Lengths, host_places, pool_blocks
from kvchat.engine.formats.shadow.memory import ShadowedMemory, divided, in_host_memory, making_bytes
from kvchat.engine.formats.shadow.shadows import Shadows
from kvchat.engine.formats.shadow.spec import shadow_specs
from kvchat.engine.formats.spec import Group, Lifetime
from kvchat.engine.forward.fused_check import fused_pass, fusion_of
from kvchat.engine.forward.fused_pass import Fusion
from kvchat.engine.forward.kernel_sizes import shadow_sizes
from kvchat.engine.forward.layerwise_check import walking_pass
from kvchat.engine.forward.runner import ForwardPass, Runner
from kvchat.engine.forward.self_check_cache import name_of
from kvchat.engine.kernels.machine_report import processor_name
from kvchat.engine.kernels.shadow_checks import shadow_trials
from kvchat.engine.kernels.stream_protocol import InlineStreams
from kvchat.engine.kernels.triton_support import is_interpreted
from kvchat.engine.memory.aligned_memory import MOST_BYTES, prefault
from kvchat.engine.memory.cuda_streams import CudaStreams
from kvchat.engine.memory.device_pool import DevicePool
from kvchat.engine.memory.disk.open_tier import WRITE_QUEUE_BYTES, open_saver, open_store
from kvchat.engine.memory.disk.store import DiskStore
from kvchat.engine.memory.host_copies import AsyncTransport, Transport
from kvchat.engine.memory.host_pool import HostPool, MappedArena
from kvchat.engine.memory.pinned import PinnedSlabs
from kvchat.engine.memory.rates import Rates
from kvchat.engine.memory.reader import Reader
from kvchat.engine.memory.saver import AsyncSaves, SaveTransport
from kvchat.engine.memory.tier_mover import TierMover
from kvchat.engine.models.linear.packed import pack_linears
from kvchat.engine.models.linear.quantized import QuantizedLinear
from kvchat.engine.models.load import LoadedModel, choose_device
from kvchat.engine.models.probing.rotaries import layer_rotaries
from kvchat.engine.models.weights_setting import WeightSource, dtype_of
from kvchat.engine.sampling.sampler import Sampler
from kvchat.engine.sampling.speculative.ngram_proposer import NgramProposer
from kvchat.engine.scheduling.scheduler import Drafter, NoDrafter
from kvchat.engine.startup.gpu import limits_of, recorded_bytes, short_steps, try_gpu, unrecorded
from kvchat.engine.startup.memory_profile import activation_bytes, measured
from kvchat.engine.startup.parts import EngineParts
from kvchat.engine.startup.weights import Candidate, EngineWeights, fingerprint_of, load_candidate
from kvchat.engine.tiering.idle_demotion import HostAdmission
from kvchat.engine.tiering.persisted_rates import PersistedRates
from kvchat.errors import ConfigError, OutOfMemory
from kvchat.platform.host_memory import available_bytes

READ_QUEUE_BYTES = 2**30
MEMORY_SHARE = 4
"""Without a limit the device pool takes at most this part of the memory that is free."""
HOST_SHARE = 4
"""Without a limit the host tier takes at most this many times the device pool."""
DEFAULT_CONTEXTS = 8
"""Without a limit the device pool holds this many conversations of full length, memory permitting."""

log = logging.getLogger(__name__)


def build_parts(
    model: str, model_dir: Path, config: EngineConfig, report: Callable[[str], None] = lambda _: None
) -> EngineParts:
    """Load the model in `model_dir`, called `model`, and build everything an engine consists of.

    Args:
        report: is told in words what takes long.

    Raises:
        ConfigError: a setting is out of its range.
        ModelError: not found, unreadable or not to be served exactly.
        CapacityError: weights or cache do not fit.
    """
    check_settings(config)
    device = choose_device(config.device)
    candidate = load_candidate(
        WeightSource(model_dir=model_dir, adapter_dir=config.adapter), config, device, report
    )
    return assemble(model, candidate, config, report)


def assemble(
    model: str, candidate: Candidate, config: EngineConfig, report: Callable[[str], None] = lambda _: None
) -> EngineParts:
    """Build everything around a model in memory; `model` is what it is called.

    Raises:
        CapacityError: the cache does not fit.
    """
    device = next(candidate.loaded.module.parameters()).device
    log.info("%d linear layers are packed for this processor", pack_linears(candidate.loaded.module))
    served, groups = candidate.served, placed(candidate.served.groups, device)
    info = _info(candidate, config, device)
    lengths = _lengths(info, config)
    fusion = _fusion(candidate, device)
    activation = _activation_bytes(candidate, groups, lengths, fusion)
    free_bytes = _free_bytes(device) - activation - recorded_bytes(served.make_pass, groups, lengths, device)
    memory = _memory(config, groups, lengths, free_bytes)
    num_blocks = pool_blocks(groups, memory.block_bytes, lengths)
    pool = DevicePool(groups, num_blocks, config.block_size, device)
    digest = fingerprint_of(candidate, config, pool)
    store, disk_problem = open_store(config, pool, digest)
    if store is not None:
        prefault(pool.first_runs(min(store.usage().num_bytes, MOST_BYTES)))
    places = host_places(groups, _host_bytes(config, groups, pool, memory), config.block_size)
    sizes = {group.id: group.block_bytes(config.block_size) for group in groups}
    host = HostPool(places, sizes, PinnedSlabs if device.type == "cuda" else MappedArena)
    capacity = measured(groups, num_blocks, lengths, activation, (host.num_bytes, memory.device_shadow_bytes))
    log.info("capacity: %s", capacity)
    persisted_rates = PersistedRates(config.cache_dir, digest.hex(), _described(device))
    rates = Rates(persisted_rates.load())
    mover, save_transport = _movers(pool, host, store, rates, config)
    tier = _device_tier(groups, num_blocks, places, rates, config)
    manager = CacheManager(tier, fingerprint=digest, slow=mover)
    shadows = shadows_of(candidate.loaded, groups, memory.shadow_bytes)
    resources = Resources(layers=pool.layers, shadows=shadows)
    forward, unfused = _forward(candidate, pool, fusion)
    limits = limits_of(groups, pool, lengths.context_len)
    short = short_steps(forward, groups, limits, activation, config.cache_dir, report)
    return EngineParts(
        config=config,
        info=replace(
            info,
            model=model,
            fingerprint=digest.hex(),
            capacity=capacity,
            keeps_states=tier.has_states,
            disk_enabled=store is not None,
            unfused=unfused,
            unrecorded=unrecorded(forward, groups, short),
        ),
        manager=manager,
        runner=Runner(forward, metadata_builders(groups, config.block_size, resources), short),
        runs_ahead=short is not None,
        sampler=Sampler(config.seed),
        drafter=_drafter(config, tier, shadows),
        pool=pool,
        mover=mover,
        rates=rates,
        persisted_rates=persisted_rates,
        reader=Reader(mover.fetch, max_bytes=READ_QUEUE_BYTES, read_ahead=mover.read_ahead),
        saver=open_saver(pool, store, manager, save_transport),
        save_transport=save_transport,
        store=store,
        disk_problem=disk_problem,
        shadows=shadows,
        beside_bytes=memory.beside_bytes if device.type == "cpu" else None,
        weights=EngineWeights(candidate, config, pool),
    )


def _drafter(config: EngineConfig, tier: DeviceTier, shadows: Shadows | None) -> Drafter:
    # A draft that is not kept would have to be taken back from a shadow, which is to make it anew. Behind a
    # state the tokens that were right are computed again, in a step of other tokens.
    may_be_cut = all(group.spec.may_be_cut for group in tier.groups)
    may_draft = config.speculate == "auto" and shadows is None and may_be_cut
    return NgramProposer() if may_draft else NoDrafter()


def placed(groups: Sequence[Group], device: torch.device) -> tuple[Group, ...]:
    """Return groups with what is known of where a device has their blocks.

    Raises:
        ConfigError: there are no shadows of them there.
    """
    if shadow_specs(groups) and device.type not in ("cpu", "cuda"):
        raise ConfigError(
            f"shadows are looked through by processors and CUDA devices, not by {device}; use --device cpu, "
            "or --cache-format exact"
        )
    looks_from_afar = device.type == "cuda" or is_interpreted()
    return in_host_memory(groups) if looks_from_afar else tuple(groups)


def shadows_of(loaded: LoadedModel, groups: Sequence[Group], limit_bytes: int) -> Shadows | None:
    """Return through what long contexts are looked at; None where no group has shadows.

    Args:
        groups: as they are placed.

    Raises:
        UnsupportedModel: its keys can have none.

    Effect:
        Runs a few tokens through the model; whoever serves it makes a forward pass again. On a GPU tries the
        kernels in the model's sizes.
    """
    shadowed = shadow_specs(groups)
    if not shadowed:
        return None
    view = next(iter(shadowed.values())).view
    rotaries = layer_rotaries(loaded.module, shadowed)
    if not any(group.in_host_memory for group in groups):
        return Shadows(view, rotaries, limit_bytes)
    device = next(loaded.module.parameters()).device
    module: Any = loaded.module
    sizes = shadow_sizes(module.config.get_text_config(), groups)
    try_gpu(device, loaded.dtype, shadow_trials(sizes), lambda _: None)
    streams = CudaStreams(device) if device.type == "cuda" else InlineStreams()
    return Shadows(view, rotaries, limit_bytes, streams)


def _memory(
    config: EngineConfig, groups: tuple[Group, ...], lengths: Lengths, free_bytes: int
) -> ShadowedMemory:
    """Return how much of the device's and of host memory holds blocks: of this only what is shadowed.

    Args:
        free_bytes: of the device, beside weights and steps.

    Raises:
        OutOfMemory: more is asked for than there is.
    """
    free_bytes -= making_bytes(groups, lengths.context_len)
    device_bytes = _device_bytes(config, groups, lengths.context_len, free_bytes)
    beside_bytes = config.host_bytes
    if any(group.in_host_memory for group in groups):
        if beside_bytes is None:
            ample = DEFAULT_CONTEXTS * _context_bytes(groups, lengths.context_len, config.block_size)
            beside_bytes = min(available_bytes() // MEMORY_SHARE, ample)
        return ShadowedMemory(
            block_bytes=beside_bytes, host_bytes=beside_bytes, shadow_bytes=device_bytes, is_remote=True
        )
    if beside_bytes is None:
        beside_bytes = max(0, available_bytes() - device_bytes) // MEMORY_SHARE
    if shadow_specs(groups):
        return divided(groups, device_bytes, beside_bytes, lengths)
    return ShadowedMemory(block_bytes=device_bytes, host_bytes=0, shadow_bytes=beside_bytes)


def check_settings(config: EngineConfig) -> None:
    """Raises: ConfigError: a setting is out of its range."""
    view = parse_cache_format(config.cache_format).view
    if view is not None:
        require_steps(view, config.max_batch_tokens)
    dtype_of(config)
    if config.block_size < 1:
        raise ConfigError(f"block_size must be at least 1, not {config.block_size}")
    if config.threads is not None and config.threads < 1:
        raise ConfigError(f"threads must be at least 1, not {config.threads}")
    if config.eviction not in list(Eviction):
        raise ConfigError(f"eviction '{config.eviction}' is unknown; use {' or '.join(Eviction)}")
    if config.idle_demote_s is not None and not config.idle_demote_s > 0:
        raise ConfigError(
            f"idle_demote_s must be positive, not {config.idle_demote_s}; leave it out for never"
        )
    if config.speculate not in SPECULATE:
        raise ConfigError(f"speculate '{config.speculate}' is unknown; use {' or '.join(SPECULATE)}")
    if config.max_batch_tokens < 1:
        raise ConfigError(f"max_batch_tokens must be at least 1, not {config.max_batch_tokens}")


def _info(candidate: Candidate, config: EngineConfig, device: torch.device) -> EngineInfo:
    """Return what is known of an engine from its model alone."""
    loaded = candidate.loaded
    bits = {layer.coding.bits for layer in loaded.module.modules() if isinstance(layer, QuantizedLinear)}
    return EngineInfo(
        model="",
        model_dir=str(candidate.source.model_dir),
        adapter=str(config.adapter.absolute()) if config.adapter else None,
        fingerprint="",
        dtype=loaded.dtype,
        weights=f"int{min(bits)}" if bits else loaded.dtype,
        device=str(device),
        block_size=config.block_size,
        max_context=min(loaded.max_context, config.max_context or loaded.max_context),
        vocab_size=loaded.vocab_size,
        eos_token_ids=tuple(sorted(loaded.eos_token_ids)),
        num_layers=loaded.num_layers,
        disk_enabled=config.cache_dir is not None,
        route=candidate.served.route,
        cache_format=canonical_cache_format(config.cache_format),
        is_exact=parse_cache_format(config.cache_format).is_exact,
    )


def _lengths(info: EngineInfo, config: EngineConfig) -> Lengths:
    return Lengths(
        context_len=info.max_context, chunk_len=config.max_batch_tokens, block_size=config.block_size
    )


def _fusion(candidate: Candidate, device: torch.device) -> Fusion | str:
    """Return a model's fused layers, or why it has none; those of a GPU are compiled on its pool."""
    if device.type == "cuda":
        return "they are compiled"
    return fusion_of(candidate.loaded, candidate.served, candidate.checks)


def _forward(candidate: Candidate, pool: DevicePool, fusion: Fusion | str) -> tuple[ForwardPass, str | None]:
    """Return the fastest pass over a pool; and why it is the model's own, where it is."""
    if pool.device.type == "cuda":
        return walking_pass(candidate.loaded, candidate.served, pool)
    return fused_pass(candidate.served, pool, fusion)


def _activation_bytes(
    candidate: Candidate, groups: Sequence[Group], lengths: Lengths, fusion: Fusion | str
) -> int:
    """Return what the largest step allocates, as measured now or by an earlier start, or by fused layers."""
    served, checks = candidate.served, candidate.checks
    name = name_of("activation", served.route, groups, lengths)
    num_bytes: int | None = checks.find(name)
    if num_bytes is None:
        num_bytes = activation_bytes(candidate.loaded.module, served.make_pass, groups, lengths)
        checks.keep(name, num_bytes)
    if isinstance(fusion, str):
        return num_bytes
    dtypes = {TORCH_DTYPES[group.spec.dtype] for group in groups}
    return max(num_bytes, *(fusion.step_bytes(lengths.chunk_len, dtype) for dtype in dtypes))


def _device_tier(
    groups: tuple[Group, ...],
    num_blocks: Mapping[GroupId, int],
    places: Mapping[GroupId, int],
    rates: Rates,
    config: EngineConfig,
) -> DeviceTier:
    """Return the accounts of the device pool, and of host memory with `places` blocks of each group."""
    eviction = Eviction(config.eviction)
    worth = HostAdmission(rates, groups, config.block_size)
    host = HostTier(groups, places, eviction, worth.in_host)
    return DeviceTier(groups, num_blocks, block_size=config.block_size, host=host, eviction=eviction)


def _device_bytes(config: EngineConfig, groups: tuple[Group, ...], max_context: int, free_bytes: int) -> int:
    """Return the limit of the device pool in bytes, of those that weights and steps leave free.

    Raises:
        OutOfMemory: more is asked for than there is; the message states the most that fits.
    """
    if config.device_bytes is None:
        ample = DEFAULT_CONTEXTS * _context_bytes(groups, max_context, config.block_size)
        return min(max(free_bytes, 0) // MEMORY_SHARE, ample)
    if config.device_bytes > free_bytes:
        raise OutOfMemory(
            f"{config.device_bytes} bytes for the cache do not fit beside the model; "
            f"give at most {max(free_bytes, 0)} with --kv-device-bytes"
        )
    return config.device_bytes


def _context_bytes(groups: Sequence[Group], max_context: int, block_size: int) -> int:
    """Return what the blocks of a conversation of full length take, and its states."""
    kept = [group for group in groups if group.spec.lifetime is not Lifetime.SUPERSEDED]
    of_tokens = sum(group.block_bytes(block_size) for group in kept if not group.is_state)
    of_states = sum(group.block_bytes(block_size) for group in kept if group.is_state)
    return of_tokens * max_context // block_size + of_states * LEAST_STATES


def _host_bytes(
    config: EngineConfig, groups: Sequence[Group], pool: DevicePool, memory: ShadowedMemory
) -> int:
    """Return the size of the host tier; where the pool lies in host memory it would be the same memory."""
    if shadow_specs(groups) and not memory.is_remote:
        return 0  # shadows, and the blocks that are looked at through them, have all that was given
    if config.host_bytes is not None:
        return config.host_bytes - memory.host_bytes
    if pool.device.type == "cpu":
        return 0
    return min(available_bytes() // MEMORY_SHARE, HOST_SHARE * pool.num_bytes)


def _described(device: torch.device) -> str:
    """Return what measured rates are of, besides the weights."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{device.type}: {processor_name()}, {torch.get_num_threads()} threads"


def _movers(
    pool: DevicePool, host: HostPool, store: DiskStore | None, rates: Rates, config: EngineConfig
) -> tuple[TierMover, SaveTransport | None]:
    """Return what moves blocks between tiers, and what takes them off the device for the disk; None: the
    engine's thread does.
    """
    if pool.device.type != "cuda":
        return TierMover(pool, store, Transport(pool, host, rates)), None
    streams = CudaStreams(pool.device)
    save_transport = None if config.cache_dir is None else AsyncSaves(pool, streams, WRITE_QUEUE_BYTES)
    return TierMover(pool, store, AsyncTransport(pool, host, rates, streams)), save_transport


def _free_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    return available_bytes()
