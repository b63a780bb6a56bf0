"""Converts stored blocks from the exact format to another one: read, quantized, written under other names.

Nothing is computed: a converted block holds the exact block's numbers in fewer bits. Its names are those of
another fingerprint and of a namespace of its own, never those of blocks that were computed in the format.
Dimensions: P block size.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from kvchat.engine.api.cache_format import EXACT, parse_cache_format
from kvchat.engine.api.config import EngineConfig
from kvchat.engine.api.ids import BlockId, GroupId
from kvchat.engine.formats.format_table import codec_of
from kvchat.engine.formats.spec import Group
from kvchat.engine.memory.device_pool import DevicePool
from kvchat.engine.models.load import choose_device
from kvchat.engine.models.weights_setting import WeightSource
from kvchat.engine.startup.weights import Candidate, fingerprint_of, groups_in, load_candidate
from kvchat.errors import ConfigError

RUN_LEN = 16
"""Blocks that are converted at one time."""

Payloads = Mapping[GroupId, bytes]


@dataclass(frozen=True, slots=True)
class ConversionSide:
    """A format with room for a few blocks of each group."""

    groups: tuple[Group, ...]
    pool: DevicePool
    fingerprint: bytes


def _side_of(candidate: Candidate, config: EngineConfig) -> ConversionSide:
    groups = groups_in(candidate.served, config.cache_format, config.block_size)
    places = {group.id: RUN_LEN for group in groups}
    pool = DevicePool(groups, places, config.block_size, torch.device("cpu"))
    served = replace(candidate.served, groups=groups)
    return ConversionSide(groups, pool, fingerprint_of(replace(candidate, served=served), config, pool))


class Converter:
    """Turns blocks of the exact format into those of another one.

    Args:
        candidate: the model, loaded for the exact format.
        config: of the exact engine whose blocks are converted.
        cache_format: what they are converted to.

    Raises:
        ConfigError: the model cannot be stored in this format, or it is a view; the message says why.
    """

    def __init__(self, candidate: Candidate, config: EngineConfig, cache_format: str) -> None:
        if parse_cache_format(cache_format).view is not None:
            raise ConfigError(
                f"cache format '{cache_format}' shows a part of exact blocks, so there is nothing to "
                f"convert; ask with --cache-format {cache_format}"
            )
        if any(group.is_state for group in candidate.served.groups):
            raise ConfigError("the cache of a model with recurrent layers cannot be converted yet")
        self._size = config.block_size
        self.exact = _side_of(candidate, replace(config, cache_format=EXACT))
        self.target = _side_of(candidate, replace(config, cache_format=cache_format))

    def convert(self, blocks: Sequence[Payloads], wanted: Callable[[GroupId, int], bool]) -> list[Payloads]:
        """Return the bytes of up to `RUN_LEN` blocks in the other format, of those groups that are wanted.

        Args:
            wanted: (group, number among `blocks`) -> whether its bytes are asked for.

        Effect: this process computes with one thread meanwhile.
        """
        assert len(blocks) <= RUN_LEN
        for place, payloads in enumerate(blocks):
            for group, payload in payloads.items():
                self.exact.pool.write_block(group, BlockId(place), bytearray(payload))
        places = torch.arange(len(blocks))
        with _one_thread():
            for layer, pool in self.target.pool.layers.items():
                numbers = self.exact.pool.layers[layer]
                codec_of(pool.spec).copy_blocks(pool, numbers, places, places)
                if pool.derived is not None:
                    codec_of(pool.derived.spec).copy_blocks(pool.derived, numbers, places, places)
        return [
            {
                group.id: bytes(self.target.pool.read_block(group.id, BlockId(place), self._size))
                for group in self.target.groups
                if wanted(group.id, place)
            }
            for place in range(len(blocks))
        ]

    def sources(self, group: GroupId) -> set[GroupId]:
        """Return the exact groups that have what a converted group is made of. Pure."""
        (layers,) = (one.layers for one in self.target.groups if one.id == group)
        return {self.exact.pool.layers[layer].group for layer in layers}


@contextmanager
def _one_thread() -> Iterator[None]:
    """Let one thread compute. There are a few MiB for each layer: on a busy machine threads that wait for
    each other take many times as long as one.
    """
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(num_threads)


def load_exact(
    model_dir: Path, config: EngineConfig, report: Callable[[str], None] = lambda _: None
) -> Candidate:
    """Load a model for the exact format.

    Raises:
        ModelError, CapacityError: it cannot be loaded.
    """
    source = WeightSource(model_dir=model_dir, adapter_dir=config.adapter)
    config = replace(config, cache_format=EXACT)
    return load_candidate(source, config, choose_device(config.device), report)
