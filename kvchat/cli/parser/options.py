"""The options of the command line, each declared once.

A command takes one frozen value of options, so that commands which share options share a base class instead
of a parameter list.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, ClassVar

from kvchat.app.config import KEYS, RemoteSettings, Settings, did_you_mean, read_settings
from kvchat.cli.parser.option_class import Argument, Option, option_class
from kvchat.cli.parser.option_types import SESSION_HELP as SESSION_HELP
from kvchat.cli.parser.option_types import (
    CacheFormat,
    Device,
    DeviceBytes,
    Dtype,
    Files,
    Json,
    LastSession,
    ModelName,
    NamedSession,
    Ndjson,
    NewSession,
    PackName,
    RemoteKeyFile,
    RemoteUrl,
    SessionWords,
    Weights,
    WhenFull,
)
from kvchat.errors import UsageError


@option_class
class PlaceOptions:
    """Where things are and how much is said; every command takes these.

    Attributes:
        is_talk: whether the command has conversations, which a server may answer.
    """

    is_talk: ClassVar[bool] = False
    data_dir: Annotated[Path | None, Option(help="Where conversations are kept.", metavar="DIR")] = None
    cache_dir: Annotated[Path | None, Option(help="Where KV blocks are kept.", metavar="DIR")] = None
    config: Annotated[
        Path | None, Option(help="Read this configuration file instead of your own.", metavar="FILE")
    ] = None
    quiet: Annotated[bool, Option("--quiet", "-q", help="Say nothing but what was asked for.")] = False
    verbose: Annotated[bool, Option("--verbose", "-v", help="Show the log on standard error.")] = False
    no_color: Annotated[bool, Option("--no-color", help="Use no colours.")] = False

    def flags(self) -> dict[str, object]:
        """Return the settings that were given here, by the dotted names of `config.KEYS`."""
        color = False if self.no_color else None
        places = {"paths.data_dir": self.data_dir, "paths.cache_dir": self.cache_dir, "display.color": color}
        return given(places)

    def settings(self, *, unlock: bool = True) -> Settings:
        """Return the settings of this run, these options on top.

        Args:
            unlock: with the key of an encrypted store, for which the person may be asked.

        Raises:
            ConfigError, UsageError: see `read_settings`.
            EncryptionError: see `unlocked`.
        """
        settings = read_settings(self.flags(), config_file=self.config)
        if not self.is_talk:
            settings = replace(settings, remote=RemoteSettings())  # a server answers; all else is done here
        if not unlock:
            return settings
        from kvchat.app.unlock import unlocked

        return unlocked(settings)


@option_class
class ListOptions(PlaceOptions):
    """Options of commands that print something: people read it, or programs in either form of JSON."""

    json: Json = False
    ndjson: Ndjson = False


@option_class
class EngineOptions(PlaceOptions):
    """Options of commands that run a model."""

    model: ModelName = None
    system: Annotated[str | None, Option(help="System prompt of a new session.", metavar="TEXT")] = None
    max_tokens: Annotated[
        str | None, Option(help="Longest answer in tokens; `none` for no limit.", metavar="N")
    ] = None
    temperature: Annotated[float | None, Option(help="0 is greedy.", metavar="X")] = None
    top_p: Annotated[float | None, Option(help="Nucleus sampling.", metavar="X")] = None
    top_k: Annotated[str | None, Option(help="Choose among the K likeliest tokens.", metavar="K")] = None
    seed: Annotated[str | None, Option(help="Seed of the sampling.", metavar="N")] = None
    option: Annotated[
        list[str] | None,
        Option("--option", "-o", help="A sampling option as KEY=VALUE.", metavar="KEY=VALUE"),
    ] = None
    device: Device = None
    dtype: Dtype = None
    weights: Weights = None
    adapter: Annotated[
        Path | None, Option(help="A LoRA for the model, as peft saves one.", metavar="DIR")
    ] = None
    cache_format: CacheFormat = None
    speculate: Annotated[
        str | None,
        Option(help="auto computes several tokens in a step where text repeats; off never.", metavar="HOW"),
    ] = None
    kv_device_bytes: DeviceBytes = None
    kv_host_bytes: Annotated[
        str | None, Option(help="Host memory for blocks that the device evicts.", metavar="SIZE")
    ] = None
    kv_disk_bytes: Annotated[str | None, Option(help="Most disk space for KV blocks.", metavar="SIZE")] = None
    kv_disk_daily_bytes: Annotated[
        str | None, Option(help="Most bytes of KV blocks written to disk in a day.", metavar="SIZE")
    ] = None
    temp: Annotated[bool, Option("--temp", help="Keep nothing: neither text nor KV nor history.")] = False

    def settings(self, *, unlock: bool = True) -> Settings:
        # Nothing that is kept is opened for `--temp`.
        return PlaceOptions.settings(self, unlock=unlock and not self.temp)

    def flags(self) -> dict[str, object]:
        # Not super(): a dataclass with slots is a new class, which the zero-argument form does not know.
        flags: dict[str, object] = {
            "model": self.model,
            "system": self.system,
            "sampling.max_tokens": self.max_tokens,
            "sampling.temperature": self.temperature,
            "sampling.top_p": self.top_p,
            "sampling.top_k": self.top_k,
            "sampling.seed": self.seed,
            "engine.device": self.device,
            "engine.dtype": self.dtype,
            "engine.weights": self.weights,
            "engine.adapter": self.adapter,
            "engine.cache_format": self.cache_format,
            "engine.speculate": self.speculate,
            "engine.device_bytes": self.kv_device_bytes,
            "engine.host_bytes": self.kv_host_bytes,
            "engine.disk_bytes": self.kv_disk_bytes,
            "engine.disk_daily_bytes": self.kv_disk_daily_bytes,
        }
        flags |= dict(_sampling_option(written) for written in self.option or ())
        return PlaceOptions.flags(self) | given(flags)


@option_class
class DoctorOptions(EngineOptions):
    """Options of looking at everything."""

    json: Json = False
    ndjson: Ndjson = False
    no_model: Annotated[bool, Option("--no-model", help="Do not load the model.")] = False


@option_class
class TalkOptions(EngineOptions):
    """Options of conversations, which a server may answer too."""

    is_talk: ClassVar[bool] = True
    remote: RemoteUrl = None
    remote_key_file: RemoteKeyFile = None

    def flags(self) -> dict[str, object]:
        flags = {"remote.url": self.remote, "remote.key_file": self.remote_key_file}
        return EngineOptions.flags(self) | given(flags)


@option_class
class ResumeOptions(TalkOptions):
    """Options of the terminal interface."""

    session: SessionWords = None
    named: NamedSession = None
    continue_last: LastSession = False
    new: NewSession = None
    no_attach: Annotated[
        bool, Option("--no-attach", help="Load the model here; the interface always does.")
    ] = False
    pack: PackName = None

    @property
    def reference(self) -> str | None:
        """The session that is named; a title needs no quotes."""
        return " ".join(self.session) if self.session else self.named


@option_class
class AskOptions(TalkOptions):
    """Options of one question."""

    question: Annotated[
        list[str] | None, Argument(help="The question.", metavar="[QUESTION]...", show_default=False)
    ] = None
    session: NamedSession = None
    continue_last: LastSession = False
    new: NewSession = None
    pack: PackName = None
    file: Files = None
    edit: Annotated[
        int | None,
        Option(help="Ask in place of your N-th last message, on a new branch.", metavar="N", min=1),
    ] = None
    json: Annotated[bool, Option("--json", help="Print one JSON object at the end.")] = False
    ndjson: Annotated[bool, Option("--ndjson", help="Print one JSON event per line.")] = False
    no_attach: Annotated[
        bool, Option("--no-attach", help="Load the model here, even where a running kvchat lends it.")
    ] = False
    num: Annotated[
        int, Option("-n", help="Give so many answers, each a branch.", metavar="N", min=1, max=8)
    ] = 1
    strict_cache: Annotated[
        bool,
        Option("--strict-cache", help="Exit with 7 rather than compute what was computed before."),
    ] = False
    when_full: WhenFull = None
    no_stats: Annotated[bool, Option("--no-stats", help="Do not say what the answer cost.")] = False
    fail_on_length: Annotated[
        bool, Option("--fail-on-length", help="Exit with 8 if the answer was cut off by its length.")
    ] = False

    def flags(self) -> dict[str, object]:
        flags = TalkOptions.flags(self) | given({"when_full": self.when_full})
        return flags | ({"display.stats": False} if self.no_stats else {})


@option_class
class EncryptOptions(ListOptions):
    """Options of choosing what opens the conversations."""

    keyring: Annotated[
        bool, Option("--keyring", help="Keep the key in the system's keyring; no passphrase.")
    ] = False
    cost: Annotated[
        int | None,
        Option(help="Of guessing a passphrase once: 2^N KiB of memory.", metavar="N", min=10, max=20),
    ] = None


@option_class
class PlanOptions(ListOptions):
    model: Annotated[
        str,
        Argument(help="A config.json, a directory, a hub id, or `starter`.", metavar="MODEL"),
    ]
    context: Annotated[
        str, Option(help="Length of the context in tokens, such as 8192 or 128k.", metavar="N")
    ] = "128k"
    format: Annotated[
        list[str] | None,
        Option(
            help="This cache format alone, as `--cache-format` names it; may be given several times.",
            metavar="FORMAT",
        ),
    ] = None


def given(flags: Mapping[str, object]) -> dict[str, object]:
    """Return the settings that have a value."""
    return {name: value for name, value in flags.items() if value is not None}


def _sampling_option(written: str) -> tuple[str, object]:
    key, equals, value = written.partition("=")
    name = f"sampling.{key.strip()}"
    if not equals:
        raise UsageError(f"-o takes KEY=VALUE, for example -o temperature=0.7, not {written!r}")
    if name not in KEYS:
        known = [known.removeprefix("sampling.") for known in KEYS if known.startswith("sampling.")]
        hint = did_you_mean(key, known) or f"; there are {', '.join(known)}"
        raise UsageError(f"there is no sampling option {key!r}{hint}")
    return name, value.strip()
