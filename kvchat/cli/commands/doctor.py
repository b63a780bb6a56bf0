"""`kvchat doctor`: what is here, what is wrong, and what to do about it. Changes nothing."""

import platform
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from os import W_OK, X_OK, access
from pathlib import Path
from shutil import disk_usage
from stat import S_IMODE
from typing import Annotated

from kvchat.app.config import Settings
from kvchat.app.model_list import describe, hub_cache, installed_models
from kvchat.app.model_location import located
from kvchat.app.unlock import PassphraseMissing, key_in_use, unlocked
from kvchat.cli.commands.cache.cache import disk_state
from kvchat.cli.output.streams import Output
from kvchat.cli.parser.options import EngineOptions, Json, Ndjson
from kvchat.cli.parser.typer_parameters import Option, option_class
from kvchat.engine.api.config import Capacity, EngineInfo
from kvchat.engine.api.snapshot import Tier
from kvchat.engine.memory.disk.block_encryption import encryption_of
from kvchat.engine.memory.rates import Direction
from kvchat.engine.models.locate import STARTER
from kvchat.engine.tiering.persisted_rates import last_moves
from kvchat.errors import KvchatError, StorageError
from kvchat.platform.key_file import key_path
from kvchat.session.database.backups import damaged_copies
from kvchat.text.figures import bytes_text, count_text, plural


@option_class
class DoctorOptions(EngineOptions):
    json: Json = False
    ndjson: Ndjson = False
    no_model: Annotated[bool, Option("--no-model", help="Do not load the model.")] = False


_PACKAGES = ("kvchat", "torch", "transformers", "tokenizers", "safetensors", "textual")
_EXTRAS = {
    "peft": "LoRA adapters: pip install 'kvchat[lora]'",
    "cryptography": "encryption on disk: pip install 'kvchat[encryption]'",
    "keyring": "its key in the system's keyring: pip install 'kvchat[encryption]'",
    "triton": "kernels for NVIDIA GPUs: comes with torch on Linux",
}
_LITTLE_BYTES = 2**30
_SHORT_FINGERPRINT = 12
_NAME_WIDTH = 10


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
        values: the same for programs.
        advice: what to do; None where all is well.
        exit_code: with which the command ends where this is broken; else 0.
    """

    name: str
    lines: tuple[str, ...]
    values: dict[str, object]
    advice: str | None = None
    exit_code: int = 0

    @property
    def state(self) -> CheckState:
        if self.exit_code:
            return CheckState.BROKEN
        return CheckState.OK if self.advice is None else CheckState.LOOK


def doctor(options: DoctorOptions) -> int:
    """Check everything in turn, telling each as it is found; return the exit code of the first broken one."""
    settings = options.settings(unlock=False)
    output = Output()
    findings = []
    for finding in all_checks(settings, load_model=not options.no_model):
        findings.append(finding)
        if options.ndjson:
            output.json(_as_values(finding))
        elif not options.json:
            tell(output, finding)
    if options.json:
        output.json({"state": _worst(findings), "checks": [_as_values(finding) for finding in findings]})
    elif not options.ndjson and _worst(findings) == CheckState.OK:
        output.line("all is well")
    return next((finding.exit_code for finding in findings if finding.exit_code), 0)


def tell(output: Output, finding: CheckResult) -> None:
    """Print a finding for people: its lines below each other, then what to do."""
    first, *others = finding.lines
    indent = 9 + _NAME_WIDTH
    output.folded(f"{finding.state:<6}  {finding.name:<{_NAME_WIDTH}} {first}", indent)
    for line in others:
        output.folded(" " * indent + line, indent)
    if finding.advice is not None:
        output.folded(f"{' ' * indent}-> {finding.advice}", indent + 3)


def _worst(findings: list[CheckResult]) -> CheckState:
    order = list(CheckState)
    return max((finding.state for finding in findings), key=order.index, default=CheckState.OK)


def _as_values(finding: CheckResult) -> dict[str, object]:
    head: dict[str, object] = {"name": finding.name, "state": finding.state}
    return head | ({"advice": finding.advice} if finding.advice else {}) | finding.values


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
        lines=(f"{words}, as blocks moved" if words else "not measured yet: moving blocks measures it",),
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
            return _encryption("conversations and KV are not encrypted", encrypted=False), settings
        words = f"conversations and KV are encrypted, {key_path(settings.paths.data_dir)}"
        try:
            opened = unlocked(settings, may_ask=False)
        except PassphraseMissing:
            return _encryption(f"{words}; not opened: no passphrase was given"), None
    except KvchatError as error:
        return replace(_encryption("the key does not open", str(error)), exit_code=3), None
    advice = None
    if left := damaged_copies(settings.paths.sessions_db):
        advice = f"damaged databases that were kept may not be encrypted; remove {', '.join(map(str, left))}"
    return _encryption(f"{words}; it opens", advice), opened


def _encryption(line: str, advice: str | None = None, *, encrypted: bool = True) -> CheckResult:
    return CheckResult(name="encryption", lines=(line,), values={"encrypted": encrypted}, advice=advice)


def all_checks(settings: Settings, *, load_model: bool) -> Iterator[CheckResult]:
    yield _versions()
    yield from _machine()
    for name, directory in (
        ("data", settings.paths.data_dir),
        ("cache", settings.paths.cache_dir),
        ("state", settings.paths.state_dir),
        ("runtime", settings.paths.runtime_dir),
    ):
        yield _directory(name, directory)
    yield _sessions(settings.paths.sessions_db)
    encryption, opened = find_encryption(settings)
    yield encryption
    if opened is not None:
        yield _store(opened)
    yield disk_speed(settings.paths.cache_dir)
    yield model_cache()
    yield from (_extra(package, gives) for package, gives in _EXTRAS.items())
    if load_model:
        yield from _model(settings)


def _versions() -> CheckResult:
    known = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            known[package] = version(package)
        except PackageNotFoundError:
            known[package] = "not installed"
    return CheckResult(
        name="versions", lines=(", ".join(" ".join(item) for item in known.items()),), values={**known}
    )


def _machine() -> Iterator[CheckResult]:
    from kvchat.engine.kernels.machine_report import this_machine

    machine = this_machine()
    has = ", ".join((f"torch uses {machine.instructions}", *machine.features))
    yield CheckResult(
        name="processor",
        lines=(
            f"{machine.processor}, {plural(machine.num_cores, 'core')} for this process",
            f"{has}; {machine.kernels}",
        ),
        values={"processor": machine.processor, "num_cores": machine.num_cores}
        | {"instructions": machine.instructions, "features": list(machine.features)}
        | {"kernels": machine.kernels},
    )
    yield CheckResult(
        name="gpu", lines=(machine.gpu,), advice=machine.gpu_advice, values={"kernels": machine.gpu}
    )
    for device in machine.devices:
        of = "" if device.total_bytes is None else f" of {bytes_text(device.total_bytes)}"
        has_room = device.free_bytes >= _LITTLE_BYTES
        yield CheckResult(
            name="device",
            lines=(f"{device.name}: {device.description}, {bytes_text(device.free_bytes)}{of} free",),
            advice=None if has_room else "little memory is free: end other programs, or use a smaller model",
            values={"device": device.name, "description": device.description}
            | {"free_bytes": device.free_bytes, "total_bytes": device.total_bytes},
        )


def _directory(name: str, directory: Path) -> CheckResult:
    """Look at a directory, or where it does not exist yet at the one it will be made in."""
    present = next(place for place in (directory, *directory.parents) if place.exists())
    free = disk_usage(present).free
    is_there = present == directory
    mode = S_IMODE(directory.stat().st_mode) if is_there else None
    words = f"{directory}, {f'mode {mode:04o}' if mode is not None else 'created when needed'}"
    finding = CheckResult(
        name=name,
        lines=(f"{words}, {bytes_text(free)} free",),
        values={"path": str(directory), "mode": None if mode is None else f"{mode:04o}", "free_bytes": free},
    )
    if not present.is_dir() or not access(present, W_OK | X_OK):
        advice = f"{present} cannot be written: change its owner, or choose another place with KVCHAT_HOME"
        return replace(finding, advice=advice, exit_code=StorageError.exit_code)
    if mode is not None and mode & 0o077:
        return replace(finding, advice=f"others can read it: chmod 700 {directory}")
    if free < _LITTLE_BYTES:
        return replace(finding, advice="the disk is nearly full: free some space")
    return finding


def _sessions(path: Path) -> CheckResult:
    """Ask SQLite whether the database of conversations holds together; nothing is written."""
    if not path.exists():
        return CheckResult(name="sessions", lines=("none yet",), values={"path": str(path), "bytes": 0})
    values: dict[str, object] = {"path": str(path), "bytes": path.stat().st_size}
    try:
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as database:
            problem = database.execute("PRAGMA quick_check(1)").fetchone()[0]
    except sqlite3.Error as error:
        problem = str(error)
    line = f"{path}, {bytes_text(path.stat().st_size)}"
    if problem == "ok":
        return CheckResult(name="sessions", lines=(line,), values=values)
    return CheckResult(
        name="sessions",
        lines=(f"{line}: {problem}",),
        advice=f"keep a copy of {path.parent}; a copy of the database that kvchat made may lie beside it",
        values=values | {"problem": problem},
        exit_code=StorageError.exit_code,
    )


def _store(settings: Settings) -> CheckResult:
    """Say what is kept on disk, and how much of it was found damaged."""
    state = disk_state(settings)
    usages = (state.usages or {}).values()
    num_blocks, num_bytes = sum(one.num_blocks for one in usages), sum(one.num_bytes for one in usages)
    quarantine = encryption_of(settings.engine.encryptor).home(settings.paths.cache_dir) / "quarantine"
    num_damaged = len(list(quarantine.iterdir())) if quarantine.is_dir() else 0
    limit = settings.engine.disk_bytes
    of_limit = "" if limit is None else f" of {bytes_text(limit)}"
    finding = CheckResult(
        name="blocks",
        lines=(
            f"{count_text(num_blocks)} on disk, {bytes_text(num_bytes)}{of_limit}, {num_damaged} damaged",
        ),
        values={"num_blocks": num_blocks, "num_bytes": num_bytes, "num_damaged": num_damaged}
        | {"limit_bytes": limit},
    )
    if state.problem is not None:
        return replace(finding, advice=state.problem, exit_code=StorageError.exit_code)
    if num_damaged:
        advice = f"look whether the disk fails; what was damaged is in {quarantine} and may be deleted"
        return replace(finding, advice=advice)
    return finding


def _extra(package: str, gives: str) -> CheckResult:
    is_there = find_spec(package) is not None
    return CheckResult(
        name="extra",
        lines=(f"{package} {'is installed' if is_there else 'is not installed'} ({gives})",),
        values={"package": package, "present": is_there, "gives": gives},
    )


def _model(settings: Settings) -> Iterator[CheckResult]:
    """Load the model as a chat would, without a disk tier, and say what it is and what fits."""
    from kvchat.engine import Engine

    try:
        location = located(settings, settings.model)
        engine = Engine.load(str(location.path), replace(settings.engine, cache_dir=None))
    except KvchatError as error:
        yield CheckResult(
            name="model",
            lines=(settings.model,),
            advice=str(error),
            values={"model": settings.model},
            exit_code=error.exit_code,
        )
        return
    try:
        yield _model_finding(settings.model, engine.info)
        yield from _refused_kernels()
        if engine.info.capacity is not None:
            yield _capacity_finding(engine.info.capacity, engine.info)
    finally:
        engine.close()


def _refused_kernels() -> Iterator[CheckResult]:
    """Yield which kernels the model turned out to compute without: they are tried as it is loaded."""
    from kvchat.engine.kernels.health import HEALTH

    if HEALTH.problems:
        yield CheckResult(
            name="gpu kernels",
            lines=tuple(f"not used for {name}: {problem}" for name, problem in HEALTH.problems.items()),
            advice="answers are right and slower; a newer driver, torch or triton may help",
            values={"refused": dict(HEALTH.problems)},
        )


def _model_finding(name: str, info: EngineInfo) -> CheckResult:
    from kvchat.engine.kernels.machine_report import num_threads

    threads = num_threads()
    return CheckResult(
        name="model",
        lines=(
            f"{name} in {info.model_dir}",
            f"fingerprint {info.fingerprint[:_SHORT_FINGERPRINT]}, runs by its {info.route}, {info.dtype} on "
            f"{info.device} with {plural(threads, 'thread')}",
            f"decodes by {_layers_text(info)}",
            f"{count_text(info.max_context)} tokens of context",
        ),
        values={"model": name, "model_dir": info.model_dir, "fingerprint": info.fingerprint}
        | {"route": str(info.route), "dtype": info.dtype, "device": info.device, "unfused": info.unfused}
        | {"unrecorded": info.unrecorded}
        | {"max_context": info.max_context, "threads": threads},
    )


def _layers_text(info: EngineInfo) -> str:
    layers = "fused layers" if info.unfused is None else f"its own layers: {info.unfused}"
    if not info.device.startswith("cuda"):
        return layers
    if info.unrecorded is None:
        return f"{layers}; steps are recorded"
    return f"{layers}; steps are not recorded, which makes answers slower: {info.unrecorded}"


def _capacity_finding(capacity: Capacity, info: EngineInfo) -> CheckResult:
    """Say what memory holds, as measured when the model was loaded."""
    is_enough = capacity.max_concurrency >= 1
    pools = tuple(
        f"{pool.kind}: {plural(pool.num_blocks, 'block')}, {pool.max_concurrency:.1f} conversations"
        for pool in capacity.pools
    )
    line = (
        f"{count_text(capacity.num_tokens)} tokens in {plural(capacity.num_blocks, 'block')} of "
        f"{bytes_text(capacity.device_bytes)}, {capacity.max_concurrency:.1f} conversations of full length; "
        f"a step takes {bytes_text(capacity.activation_bytes)} beside them"
    )
    return CheckResult(
        name="capacity",
        lines=(line, *pools),
        advice=None
        if is_enough
        else f"a conversation of {info.max_context:,} tokens does not fit: give more with --kv-device-bytes",
        values=asdict(capacity),
    )
