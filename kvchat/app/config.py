"""Settings, read once into frozen values.

Each of these overrules the ones after it:

    flags > KVCHAT_* > ./.kvchat.toml > the user's config.toml > the system's config.toml > defaults

A project file comes with a folder that somebody else may have written, so it may choose a model and how to
talk to it, and nothing that costs disk space, opens a path or reaches further.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from kvchat.engine.api.cache_format import EXACT, NAMES, canonical_cache_format
from kvchat.engine.api.config import SPECULATE, EngineConfig
from kvchat.engine.api.sampling_params import SamplingParams
from kvchat.engine.api.view import SHADOW
from kvchat.errors import ConfigError, InvalidRequest, KvchatError, UsageError
from kvchat.platform.parsing import (
    OneOf,
    OrNone,
    integer,
    keys,
    number,
    parse_size,
    path,
    positive,
    shared_key,
    some_text,
    text,
    yes_or_no,
)
from kvchat.platform.paths import Paths, places

PROJECT_FILE = ".kvchat.toml"
STARTER = "starter"
FLAG = "flag"
# fmt: off
KEY_NAMES = (
    "help", "sessions", "cache", "layers", "inspect", "freeze", "find", "answer", "notices", "send",
    "newline", "palette", "suspend", "redraw", "screen", "go_on", "messages", "editor", "history", "new",
    "reasoning", "stop", "quit",
)
# fmt: on
"""What the interface does by keys that a person may change, several separated by commas."""
EVICT, COMPRESS = "evict", "compress"
DEFAULT_MAX_TOKENS = 1024
DEFAULT_DISK_BYTES = 20 * 2**30
"""A cache that grows without a bound fills a disk in days; what goes first is what was used longest ago."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Display:
    """How things are shown. `color`: None decides by terminal and NO_COLOR. `theme`: the interface's."""

    color: bool | None = None
    stats: bool = True
    theme: str = "kvchat"


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteSettings:
    """The server that answers in place of an engine here; no `url`: none does.

    Args:
        key_file: what is sent to it as a key.
    """

    url: str | None = None
    key_file: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Everything that can be set, after all layers."""

    paths: Paths
    model: str = STARTER
    system: str = ""
    sampling: SamplingParams = field(default_factory=SamplingParams)
    display: Display = field(default_factory=Display)
    keys: Mapping[str, str | None] = field(default_factory=dict)
    """Other keys than the interface comes with, by `KEY_NAMES`."""
    engine: EngineConfig = field(default_factory=EngineConfig)
    remote: RemoteSettings = field(default_factory=RemoteSettings)
    when_full: str = EVICT
    """What happens to a conversation that has outgrown the cache: see `compressed_format`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """One setting: how its value is read, its KVCHAT_* name, and whether a project file may set it."""

    read: Callable[[Any], object]
    variable: str
    in_project: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """What one origin sets, by the names of `KEYS`. `origin`: a file, a variable, or FLAG."""

    origin: str
    values: Mapping[str, object]


def read_settings(
    flags: Mapping[str, object] | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    config_file: Path | None = None,
) -> Settings:
    """Return the settings of this run.

    Args:
        flags: dotted names of `KEYS` to values; they overrule everything.
        environ: the environment; the process's own unless given.
        cwd: where a project file is looked for.
        config_file: read instead of the user's file; must exist.

    Raises:
        ConfigError: a file or variable cannot be read, or names or sets something that is not there.
        UsageError: a flag's value is out of its range.
    """
    environ = os.environ if environ is None else environ
    layers = read_layers(flags, environ=environ, cwd=cwd, config_file=config_file)
    values = {name: value for layer in layers for name, value in layer.values.items()}
    return _assemble(values, places(environ)[0], _chosen_file(environ, config_file))


def default_settings() -> Settings:
    """Return the settings of a run for which nothing is set."""
    return _assemble({}, places(os.environ)[0], None)


def read_layers(
    flags: Mapping[str, object] | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    config_file: Path | None = None,
    document: str | None = None,
) -> tuple[Layer, ...]:
    """Return every layer of settings; see `read_settings`. `document` stands in for the person's own file."""
    environ = os.environ if environ is None else environ
    chosen = _chosen_file(environ, config_file)
    paths, system_file = places(environ)
    own = chosen or paths.config_file
    if chosen is not None and document is None and not chosen.is_file():
        raise ConfigError(f"there is no configuration file {chosen}")
    layers = [] if system_file is None else [Layer(origin=str(system_file), values=_from_file(system_file))]
    values = _from_file(own) if document is None else settings_in(document, own)
    layers.append(Layer(origin=str(own), values=values))
    with suppress(FileNotFoundError):  # a directory that is gone has no project file
        project_file = (cwd or Path.cwd()) / PROJECT_FILE
        layers.append(Layer(origin=str(project_file), values=_from_file(project_file, is_project=True)))
    layers += [*_from_environment(environ), Layer(origin=FLAG, values=_checked("", flags or {}, UsageError))]
    _refuse_shared_key("", {name: value for layer in layers for name, value in layer.values.items()})
    return tuple(layers)


def deciding_origins(layers: Iterable[Layer]) -> dict[str, str]:
    """Return, by the name of each setting that is set, the origin that decides it: the last that sets it."""
    return {name: layer.origin for layer in layers for name in layer.values}


def overruling_origin(name: str, file: Path, layers: Iterable[Layer]) -> str | None:
    """Return what overrules a setting of a file; None where nothing does, or the file does not set it."""
    setting = [layer.origin for layer in layers if name in layer.values]
    return setting[-1] if str(file) in setting and setting[-1] != str(file) else None


def own_file(config_file: Path | None = None) -> Path:
    """Return where the person's configuration file is, or would be."""
    return _chosen_file(os.environ, config_file) or places(os.environ)[0].config_file


def _chosen_file(environ: Mapping[str, str], config_file: Path | None) -> Path | None:
    named = environ.get("KVCHAT_CONFIG")
    return config_file or (Path(named) if named else None)


def _cache_format(value: object) -> str:
    try:
        return canonical_cache_format(text(value))
    except ConfigError as error:
        raise ValueError(str(error)) from error


def _when_full(value: object) -> str:
    """Return `evict`, `compress` with or without a format, or `shadow` with or without how much it sees."""
    verb, colon, cache_format = text(value).partition(":")
    if verb not in (EVICT, COMPRESS, SHADOW) or (verb == EVICT and colon):
        raise ValueError(f"must be evict, compress, compress:FORMAT, shadow or shadow:N%, not {value!r}")
    if verb == SHADOW:
        return _cache_format(value) if colon else verb
    formats = [name for name in NAMES if name != EXACT]
    if colon and cache_format not in formats:
        raise ValueError(f"compresses to {', '.join(formats)}, not to {cache_format!r}")
    return text(value)


KEYS: Mapping[str, Key] = {
    "model": Key(read=some_text, variable="KVCHAT_MODEL", in_project=True),
    "system": Key(read=text, variable="KVCHAT_SYSTEM", in_project=True),
    "when_full": Key(read=_when_full, variable="KVCHAT_WHEN_FULL"),
    "sampling.max_tokens": Key(read=OrNone(integer), variable="KVCHAT_MAX_TOKENS", in_project=True),
    "sampling.temperature": Key(read=number, variable="KVCHAT_TEMPERATURE", in_project=True),
    "sampling.top_p": Key(read=number, variable="KVCHAT_TOP_P", in_project=True),
    "sampling.top_k": Key(read=OrNone(integer), variable="KVCHAT_TOP_K", in_project=True),
    "sampling.min_p": Key(read=number, variable="KVCHAT_MIN_P", in_project=True),
    "sampling.repetition_penalty": Key(read=number, variable="KVCHAT_REPETITION_PENALTY", in_project=True),
    "sampling.seed": Key(read=OrNone(integer), variable="KVCHAT_SEED", in_project=True),
    "display.color": Key(read=yes_or_no, variable="KVCHAT_COLOR", in_project=True),
    "display.stats": Key(read=yes_or_no, variable="KVCHAT_STATS", in_project=True),
    "display.theme": Key(read=text, variable="KVCHAT_THEME"),
    "engine.device": Key(read=OneOf(("auto", "cpu", "cuda", "mps")), variable="KVCHAT_DEVICE"),
    "engine.dtype": Key(read=OneOf(("auto", "float32", "bfloat16", "float16")), variable="KVCHAT_DTYPE"),
    "engine.weights": Key(
        read=OneOf(("auto", "fp32", "bf16", "fp16", "int8", "int4")), variable="KVCHAT_WEIGHTS"
    ),
    "engine.adapter": Key(read=OrNone(path), variable="KVCHAT_ADAPTER"),
    "engine.cache_format": Key(read=_cache_format, variable="KVCHAT_CACHE_FORMAT"),
    "engine.block_size": Key(read=positive, variable="KVCHAT_BLOCK_SIZE"),
    "engine.device_bytes": Key(read=OrNone(parse_size), variable="KVCHAT_KV_DEVICE_BYTES"),
    "engine.host_bytes": Key(read=OrNone(parse_size), variable="KVCHAT_KV_HOST_BYTES"),
    "engine.disk_bytes": Key(read=OrNone(parse_size), variable="KVCHAT_KV_DISK_BYTES"),
    "engine.disk_daily_bytes": Key(read=OrNone(parse_size), variable="KVCHAT_KV_DISK_DAILY_BYTES"),
    "engine.eviction": Key(read=OneOf(("s3fifo", "lru")), variable="KVCHAT_EVICTION"),
    "engine.idle_demote_s": Key(read=OrNone(number), variable="KVCHAT_IDLE_DEMOTE_S"),
    "engine.max_batch_tokens": Key(read=positive, variable="KVCHAT_MAX_BATCH_TOKENS"),
    "engine.max_context": Key(read=OrNone(positive), variable="KVCHAT_MAX_CONTEXT"),
    "engine.speculate": Key(read=OneOf(SPECULATE), variable="KVCHAT_SPECULATE"),
    "engine.threads": Key(read=OrNone(positive), variable="KVCHAT_THREADS"),
    **{f"keys.{name}": Key(read=OrNone(keys), variable=f"KVCHAT_KEY_{name.upper()}") for name in KEY_NAMES},
    "remote.url": Key(read=OrNone(some_text), variable="KVCHAT_REMOTE"),
    "remote.key_file": Key(read=OrNone(path), variable="KVCHAT_REMOTE_KEY_FILE"),
    "paths.data_dir": Key(read=path, variable="KVCHAT_DATA_DIR"),
    "paths.cache_dir": Key(read=path, variable="KVCHAT_CACHE_DIR"),
}

# Read before everything else, so they are no keys of a file.
_PLACES = ("KVCHAT_HOME", "KVCHAT_CONFIG")

PASSPHRASE_VARIABLES = ("KVCHAT_PASSPHRASE", "KVCHAT_PASSPHRASE_FD", "KVCHAT_NEW_PASSPHRASE")
"""Read only where something encrypted is opened, so they are no settings either."""

_NO_SETTINGS = (*_PLACES, *PASSPHRASE_VARIABLES, "KVCHAT_DEBUG_KERNELS")
"""The last one is read where kernels are launched."""


def _from_file(file: Path, *, is_project: bool = False) -> dict[str, object]:
    """Return the settings of one file, {} where there is none."""
    return settings_in(file_text(file), file, is_project=is_project)


def file_text(file: Path) -> str:
    """Return what a configuration file holds, nothing where there is none.

    Raises:
        ConfigError: it cannot be read.
    """
    try:
        if file.exists() and not (file.is_file() or file.is_dir()):  # a pipe may never end
            raise ConfigError(f"{file} is not a regular file")
        return file.read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError):
        return ""
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file} is not valid TOML: {error}") from error
    except OSError as error:
        raise ConfigError(f"cannot read {file}: {error.strerror or error}") from error


def settings_in(document: str, file: Path, *, is_project: bool = False) -> dict[str, object]:
    """Return the settings that the text of a file holds.

    Raises:
        ConfigError: it is no TOML, or sets what is not there, or what this file may not.
    """
    if not document:  # no file, as on most machines: nothing is imported for it
        return {}
    import tomllib

    try:
        values = _flatten(tomllib.loads(document))
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{file} is not valid TOML: {error}") from error
    except ConfigError as error:
        raise ConfigError(f"{file}: {error}") from error
    for name in values:
        if name not in KEYS:
            raise ConfigError(f"{file}: there is no setting '{name}'{did_you_mean(name, KEYS)}")
        if is_project and not KEYS[name].in_project:
            raise ConfigError(
                f"{file} sets '{name}', which a project file may not; it may choose model, system, sampling"
                f" and display. Set it in your own configuration file or with {KEYS[name].variable}"
            )
    return _checked(f"{file}: ", values, ConfigError)


def _flatten(document: Mapping[str, object]) -> dict[str, object]:
    """Return `{"sampling.seed": 1}` for `{"sampling": {"seed": 1}}`; deeper tables stay as they are."""
    flat: dict[str, object] = {}
    for name, value in document.items():
        named = {name: value}
        if isinstance(value, dict) and name not in KEYS:
            named = {f"{name}.{inner}": one for inner, one in value.items()}
        if twice := flat.keys() & named.keys():
            raise ConfigError(f"'{min(twice)}' is set twice; take one of them out")
        flat |= named
    return flat


def _from_environment(environ: Mapping[str, str]) -> Iterator[Layer]:
    """Yield a layer for each variable."""
    names = {key.variable: name for name, key in KEYS.items()}
    if environ.get("NO_COLOR"):
        yield Layer(origin="NO_COLOR", values={"display.color": False})
    for variable, value in environ.items():
        if not variable.startswith("KVCHAT_") or variable in _NO_SETTINGS:
            continue
        if variable not in names:
            hint = did_you_mean(variable, [*names, *_NO_SETTINGS])
            raise ConfigError(f"there is no setting {variable} to read from the environment{hint}")
        yield Layer(origin=variable, values=_checked(f"{variable}: ", {names[variable]: value}, ConfigError))


def _checked(origin: str, values: Mapping[str, object], refusal: type[KvchatError]) -> dict[str, object]:
    """Return `values` as their keys read them; what is wrong is refused in the name of its origin."""
    read = {}
    for name, value in values.items():
        try:
            read[name] = KEYS[name].read(value)
        except ValueError as error:
            raise refusal(f"{origin}{name.rpartition('.')[2]} {error}") from error
    try:
        SamplingParams(**_section("sampling", read))
    except InvalidRequest as error:
        raise refusal(f"{origin}{error}") from error
    _refuse_shared_key(origin, read)
    return read


def _refuse_shared_key(origin: str, values: Mapping[str, object]) -> None:
    """Refuse one key for two things: the interface would do one of them, and nothing would say why."""
    own = {name: str(value) for name, value in values.items() if name.startswith("keys.") and value}
    if (shared := shared_key(own)) is not None:
        key, one, other = shared
        raise ConfigError(f"{origin}{one} and {other} are both '{key}'; change one: kvchat config edit")


def _section(name: str, values: Mapping[str, object]) -> dict[str, Any]:
    prefix = name + "."
    return {key.removeprefix(prefix): value for key, value in values.items() if key.startswith(prefix)}


def _assemble(values: Mapping[str, object], paths: Paths, chosen: Path | None) -> Settings:
    paths = replace(paths, config_file=chosen or paths.config_file, **_section("paths", values))
    return Settings(
        paths=paths,
        model=str(values.get("model", STARTER)),
        system=str(values.get("system", "")),
        when_full=str(values.get("when_full", EVICT)),
        sampling=SamplingParams(**({"max_tokens": DEFAULT_MAX_TOKENS} | _section("sampling", values))),
        display=Display(**_section("display", values)),
        keys=_section("keys", values),
        remote=RemoteSettings(**_section("remote", values)),
        engine=EngineConfig(
            **({"disk_bytes": DEFAULT_DISK_BYTES} | _section("engine", values)),
            cache_dir=paths.cache_dir,
            owners=paths.data_dir,
        ),
    )


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return `; did you mean 'model'?`, or nothing where no known word is near."""
    from difflib import get_close_matches

    near = get_close_matches(word, list(known), n=1)
    return f"; did you mean '{near[0]}'?" if near else ""


def value_of(settings: Settings, name: str) -> object:
    """Return the value of a setting by its name in `KEYS`."""
    value: object = settings
    for part in name.split("."):
        value = value.get(part) if isinstance(value, Mapping) else getattr(value, part)
    return value
