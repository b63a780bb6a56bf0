"""Disk speed and models on disk, as `kvchat doctor` reports them, at little cost."""

from pathlib import Path

from kvchat.cli.commands.doctor.finding import CheckResult
from kvchat.cli.commands.models import describe, hub_cache, installed_models
from kvchat.engine.api.snapshot import Tier
from kvchat.engine.memory.rates import Direction
from kvchat.engine.models.locate import STARTER
from kvchat.engine.tiering.persisted_rates import last_moves
from kvchat.text.figures import bytes_text, plural

_VERBS = {Direction.LOAD: "reads", Direction.STORE: "writes"}


def disk_speed(cache_dir: Path) -> CheckResult:
    """Say how fast blocks came from the disk and went there, as earlier processes have measured it."""
    moves = last_moves(cache_dir)
    rates = {
        verb: 1 / moves[Tier.DISK, direction]
        for direction, verb in _VERBS.items()
        if (Tier.DISK, direction) in moves
    }
    words = ", ".join(f"{verb} {bytes_text(round(rate))}/s" for verb, rate in rates.items())
    return CheckResult(
        name="disk speed",
        lines=(f"{words}, as blocks moved" if words else "not measured yet: it is while blocks are moved",),
        values={f"{verb}_bytes_per_s": rates.get(verb) for verb in _VERBS.values()},
    )


def model_cache() -> CheckResult:
    """Say which models need no network: those in the cache of Hugging Face's libraries."""
    found = [describe(name, path, 0) for name, path in installed_models() if name != STARTER]
    num_bytes, num_broken = sum(one.num_bytes for one in found), sum(one.problem is not None for one in found)
    broken = f"; {num_broken} cannot be loaded, `kvchat models` says why" if num_broken else ""
    return CheckResult(
        name="hub cache",
        lines=(f"{hub_cache()}, {plural(len(found), 'model')}, {bytes_text(num_bytes)}{broken}",),
        values={"path": str(hub_cache()), "num_models": len(found)}
        | {"num_bytes": num_bytes, "num_broken": num_broken},
    )
