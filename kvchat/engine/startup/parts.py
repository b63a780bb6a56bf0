"""Parts of an engine, as assembled at start-up."""

from dataclasses import dataclass

from kvchat.engine.api.config import EngineConfig, EngineInfo
from kvchat.engine.cache.manager import CacheManager
from kvchat.engine.formats.shadow.shadows import Shadows
from kvchat.engine.forward.runner import Runner
from kvchat.engine.memory.device_pool import DevicePool
from kvchat.engine.memory.disk.store import DiskStore
from kvchat.engine.memory.rates import Rates
from kvchat.engine.memory.reader import Reader
from kvchat.engine.memory.saver import Saver, SaveTransport
from kvchat.engine.memory.tier_mover import TierMover
from kvchat.engine.sampling.sampler import Sampler
from kvchat.engine.scheduling.scheduler import Drafter
from kvchat.engine.startup.weights import EngineWeights
from kvchat.engine.tiering.persisted_rates import PersistedRates


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineParts:
    """The parts of one engine; `saver` and `store` are None without a disk tier.

    `disk_problem` says why there is no disk tier although one was wanted.
    `save_transport`: how blocks leave the device for the disk; None: in the engine's thread.
    `runs_ahead`: whether steps are handed in before the tokens of the last are read.
    `shadows`: through which long contexts are looked at; None: they are not.
    `beside_bytes`: that a format with shadows could have of host memory; None: there is none on this device.
    """

    config: EngineConfig
    info: EngineInfo
    manager: CacheManager
    runner: Runner
    sampler: Sampler
    drafter: Drafter
    pool: DevicePool
    mover: TierMover
    rates: Rates
    persisted_rates: PersistedRates
    runs_ahead: bool = False
    reader: Reader
    saver: Saver | None
    save_transport: SaveTransport | None = None
    store: DiskStore | None
    disk_problem: str | None = None
    shadows: Shadows | None = None
    beside_bytes: int | None = None
    weights: EngineWeights
