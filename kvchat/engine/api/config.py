"""Engine configuration."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvchat.platform.encryptor import Encryptor

BLOCK_SIZE = 64
"""Tokens of a block."""
CACHE_FORMATS = ("exact", "fp8", "int8", "int4", "int2")
"""Names of the formats in which KV can be stored; `api/cache_format.py` says how they are put together."""

SPECULATE = ("auto", "off")


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """Settings of one engine.

    Args:
        device: auto, cpu, cuda or mps.
        dtype: auto (as the checkpoint says), float32, bfloat16 or float16.
        weights: auto (as the checkpoint says), fp32, bf16 or fp16, int8 or int4 (quantised once and kept).
        cache_format: storage format of KV: `exact` keeps it in the model's dtype; fp8, int8, int4 and int2
            keep all but the last one or two blocks in so many bits, and answers are then approximate. Keys
            and values may differ (`k=int8,v=int4`), and layers (`int4; layers 0-1=exact`). window, knorm,
            keydiff and snapkv store it exact and show a part of it (`window:1024`).
        block_size: tokens per block.
        device_bytes: limit of the device pool over all groups; None: chosen from the memory that is free.
        host_bytes: size of the host tier, which takes what the device pool evicts; None: none on a processor,
            else a multiple of the device pool.
        disk_bytes: limit of the blocks on disk; None: no limit of its own.
        disk_daily_bytes: most bytes of blocks written on one day; None: no limit.
        cache_dir: directory of the disk tier; None: no disk tier.
        encryptor: what is encrypted on disk is encrypted with it; None: nothing is.
        is_gone: whether the owner of a sequence is gone, and its text with him; asked before it is saved
            as it is let go of, in the thread of the engine; must not raise. None: nobody ever is.
        owners: directory of the store whose sessions own sequences, the one that `is_gone` asks.
        eviction: which cached block makes room: s3fifo, which a long document read once does not flush, or
            lru, the least recently used.
        idle_demote_s: a conversation left alone for so many seconds leaves the device for host memory; None:
            only when its room is needed.
        max_batch_tokens: most tokens computed in one step, prefill chunks and decode together.
        speculate: auto guesses tokens that repeat earlier ones and computes several in a step where that is
            faster, which changes no answer; off computes one at a time.
        max_context: shorter context than the model's own; None: the model's.
        threads: threads of one operation on the processor; None: one for small models, else all usable cores.
        seed: seed of the sampling of requests that bring none.
        adapter: directory of a LoRA that is merged into the weights; None: none.
    """

    device: str = "auto"
    dtype: str = "auto"
    weights: str = "auto"
    cache_format: str = "exact"
    block_size: int = BLOCK_SIZE
    device_bytes: int | None = None
    host_bytes: int | None = None
    disk_bytes: int | None = None
    disk_daily_bytes: int | None = None
    cache_dir: Path | None = None
    encryptor: "Encryptor | None" = None
    is_gone: Callable[[str], bool] | None = field(default=None, compare=False, repr=False)
    owners: Path | None = field(default=None, compare=False)
    eviction: str = "s3fifo"
    idle_demote_s: float | None = 600.0
    max_batch_tokens: int = 512
    speculate: str = "auto"
    max_context: int | None = None
    threads: int | None = None
    seed: int | None = None
    adapter: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolCapacity:
    """What the device pool of one group holds.

    `num_tokens`: of conversations that keep all of theirs; None where layers keep a window alone.
    `max_concurrency`: conversations of full length that fit at the same time.
    """

    group: int
    kind: str
    num_blocks: int
    num_tokens: int | None
    max_concurrency: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """What the engine's memory holds, measured when it was built.

    Args:
        activation_bytes: peak of what one step allocates beside weights and cache.
        device_bytes: all device pools together, and shadows of blocks in host memory.
        host_bytes: the host tier, and a GPU's blocks where it has shadows of them.
        num_blocks: blocks of all groups on the device.
        num_tokens: tokens that conversations can hold on the device in all.
        max_concurrency: conversations of full length that fit at the same time.
        pools: the same for the pool of each group.
    """

    activation_bytes: int
    device_bytes: int
    host_bytes: int
    num_blocks: int
    num_tokens: int
    max_concurrency: float
    pools: tuple[PoolCapacity, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineInfo:
    """What a loaded engine is, for those who talk to it. `fingerprint` is hex.

    `route` says by what the model runs on the cache: its `attention`, or the `cache` it asks.
    """

    model: str
    model_dir: str
    fingerprint: str
    dtype: str
    device: str
    block_size: int
    max_context: int
    vocab_size: int
    eos_token_ids: tuple[int, ...]
    num_layers: int
    disk_enabled: bool
    route: str = "attention"
    adapter: str | None = None
    """Directory of the LoRA that is merged into the weights."""
    weights: str = ""
    """What the weights are kept in: their dtype, or what they are quantised to."""
    cache_format: str = "exact"
    is_exact: bool = True
    """Whether the format keeps KV as it was computed; answers are approximate otherwise."""
    unfused: str | None = None
    """Why all tokens go through the model's own decoder layers; None: they go through fused ones."""
    unrecorded: str | None = None
    """Why no decode step is recorded on a GPU; None: some are, or there is no GPU."""
    keeps_states: bool = False
    """Whether layers keep recurrent states, from which alone prompts go on."""
    capacity: Capacity | None = None
    """None for an engine that is described but not built."""
