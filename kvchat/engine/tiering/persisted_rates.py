"""Rates measured by earlier processes, in a small file in the cache directory.

So the first choice of a process, and the estimate it is told with, rest on what this machine did, and not on
what machines are taken to do. A figure from elsewhere misleads a process until it has measured its own, so a
record names weights and storage format (the fingerprint), the device, and the threads that computed.

It holds a version, and the records, the newest last (see `kept_file`).
"""

import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from statistics import median
from typing import Any, Final

from kvchat.engine.api.snapshot import Tier
from kvchat.engine.memory.rates import WINDOW, Direction, Measured, Rates, Samples
from kvchat.platform.cached_results import read_kept, write_kept

FILE_NAME: Final = "rates"
VERSION: Final = 1
MAX_RECORDS: Final = 32
_MAX_KINDS = 64
_KINDS = {f"{tier} {direction}": (tier, direction) for tier in Tier for direction in Direction}

Records = dict[str, Measured]
"""By what they are of, the newest last."""


class PersistedRates:
    """The record of one engine. Several processes may keep theirs at once; the last to write counts.

    Args:
        cache_dir: None: nothing is kept.
        fingerprint: of what is computed, in hexadecimal.
        device: with what, and how many threads; the figures of another may be others.
    """

    def __init__(self, cache_dir: Path | None, fingerprint: str, device: str) -> None:
        self._file = cache_dir / FILE_NAME if cache_dir is not None else None
        self._device = device
        self._kept: Measured | None = None
        self.rename(fingerprint)

    def load(self) -> Measured:
        """Return what earlier processes have measured; of weights that are new here, what others took to
        move on this device.
        """
        records = _read(self._file)
        own = records.get(self._name, Measured())
        moves: dict[tuple[Tier, Direction], Samples] = {}
        for name, record in records.items():
            if name.partition(" ")[2] == self._device:
                moves |= record.moves
        self._kept = Measured(prefill=own.prefill, moves=moves | dict(own.moves))
        return self._kept

    def save(self, rates: Rates) -> None:
        """Keep what was measured, if anything was; not being able to costs the next process a better guess.
        Waits for no medium.
        """
        measured = rates.measured()
        if self._file is None or measured in (self._kept, Measured()):
            return
        records = _read(self._file)
        records.pop(self._name, None)
        records[self._name] = measured
        for name in list(records)[:-MAX_RECORDS]:
            del records[name]
        listed = [[name, _listed(record)] for name, record in records.items()]
        write_kept(self._file, {"version": VERSION, "records": listed})
        self._kept = measured

    def rename(self, fingerprint: str) -> None:
        """Let what is saved from now on be of other weights of the same model, which take as long."""
        self._kept = None
        self._name = f"{fingerprint} {self._device}"


def last_moves(cache_dir: Path) -> dict[tuple[Tier, Direction], float]:
    """Return the seconds that a byte took to move for the last process that has measured it; medians."""
    moves: dict[tuple[Tier, Direction], Samples] = {}
    for record in _read(cache_dir / FILE_NAME).values():
        moves |= record.moves
    return {kind: median(samples) for kind, samples in moves.items()}


def _read(file: Path | None) -> Records:
    """Return the records of a file of this version; none of another, or of what was not written here."""
    fields = read_kept(file) if file is not None else None
    if not isinstance(fields, dict) or fields.get("version") != VERSION:
        return {}
    try:
        return {name: _record(listed) for name, listed in fields["records"]}
    except (LookupError, TypeError, AttributeError, ValueError):
        return {}


def _listed(record: Measured) -> dict[str, Any]:
    return {
        "prefill": [[bucket, _short(samples)] for bucket, samples in sorted(record.prefill.items())],
        "moves": [
            [f"{tier} {direction}", _short(samples)] for (tier, direction), samples in record.moves.items()
        ],
    }


def _short(samples: Iterable[float]) -> list[float]:
    """Nothing is known to more than four digits."""
    return [float(f"{sample:.4g}") for sample in samples]


def _record(listed: Mapping[str, Any]) -> Measured:
    prefill = {int(bucket): _samples(samples) for bucket, samples in listed["prefill"][:_MAX_KINDS]}
    moves = {_KINDS[kind]: _samples(samples) for kind, samples in listed["moves"]}
    return Measured(prefill=prefill, moves=moves)


def _samples(listed: list[Any]) -> Samples:
    samples = tuple(float(sample) for sample in listed[-WINDOW:])
    if not samples or not all(math.isfinite(sample) and sample > 0 for sample in samples):
        raise ValueError("no measurements")
    return samples
