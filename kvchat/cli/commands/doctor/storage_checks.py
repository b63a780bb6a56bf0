"""Disk speed and models on disk, as `kvchat doctor` reports them, at little cost."""

from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from kvchat.app.config import Settings
from kvchat.app.unlock import PassphraseMissing, key_in_use, unlocked
from kvchat.cli.commands.models import describe, hub_cache, installed_models
from kvchat.engine.api.snapshot import Tier
from kvchat.engine.memory.rates import Direction
from kvchat.engine.models.locate import STARTER
from kvchat.engine.tiering.persisted_rates import last_moves
from kvchat.errors import KvchatError
from kvchat.platform.key_file import key_path
from kvchat.session.database.backups import damaged_copies
from kvchat.text.figures import bytes_text, plural


class CheckState(StrEnum):
    """`LOOK`: it works, and there is something to do about it."""

    OK = "ok"
    LOOK = "look"
    BROKEN = "broken"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """What one check has found.

    Args:
        lines: for people; the first one says it all.
        advice: what to do; None where all is well.
        values: the same for programs.
        exit_code: with which the command ends if this is broken.
    """

    name: str
    lines: tuple[str, ...]
    state: CheckState = CheckState.OK
    advice: str | None = None
    values: dict[str, object] = field(default_factory=dict)
    exit_code: int = 0


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


def find_encryption(settings: Settings) -> tuple[CheckResult, Settings | None]:
    """Say what is encrypted; return the settings with the key too, None where it was not to be had."""
    try:
        key = key_in_use(settings.paths)
        if key is None:
            return _finding("conversations and KV are in the clear", encrypted=False), settings
        words = f"conversations and KV are encrypted, {key_path(settings.paths.data_dir)}"
        try:
            opened = unlocked(settings, may_ask=False)
        except PassphraseMissing:
            return _finding(f"{words}; not opened: no passphrase was given", encrypted=True), None
    except KvchatError as error:
        broken = _finding("the key does not open", encrypted=True, advice=str(error), state=CheckState.BROKEN)
        return broken, None
    if left := damaged_copies(settings.paths.sessions_db):
        advice = f"damaged databases that were kept may be in the clear; remove {', '.join(map(str, left))}"
        return _finding(f"{words}; it opens", encrypted=True, advice=advice, state=CheckState.LOOK), opened
    return _finding(f"{words}; it opens", encrypted=True), opened


def _finding(
    line: str, *, encrypted: bool, advice: str | None = None, state: CheckState = CheckState.OK
) -> CheckResult:
    return CheckResult(
        name="encryption",
        lines=(line,),
        state=state,
        advice=advice,
        values={"encrypted": encrypted},
        exit_code=0 if state is not CheckState.BROKEN else 3,
    )
