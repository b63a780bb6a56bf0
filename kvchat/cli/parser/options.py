"""The options of the command line, each declared once.

A command takes one frozen value of options, so that commands which share options share a base class instead
of a parameter list.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, get_type_hints

from kvchat.app.config import KEYS, RemoteSettings, Settings, did_you_mean, read_settings
from kvchat.cli.parser.shell_completion import complete_pack, complete_session
from kvchat.cli.parser.typer_parameters import Argument, Option, option_class
from kvchat.errors import UsageError

SESSION_HELP = "Id, unique start of an id, or title."


def model_option(help: str, setting: str | None = None) -> Option:
    """Return `--model`; `setting`: what it overrules."""
    return Option("--model", "-m", help=help, metavar="MODEL", needs_value=True, setting=setting)


def session_argument(help: str = SESSION_HELP, metavar: str = "SESSION", **told: Any) -> Argument:
    """Return an argument that names sessions, which a shell completes."""
    return Argument(help=help, metavar=metavar, needs_value=True, autocompletion=complete_session, **told)


Json = Annotated[bool, Option("--json", help="Print JSON.")]
Ndjson = Annotated[bool, Option("--ndjson", help="Print JSON, one object per line.")]
Yes = Annotated[bool, Option("--yes", "-y", help="Do not ask.")]
NoKv = Annotated[bool, Option("--no-kv", help="Leave out KV blocks.")]
NoAttach = Annotated[
    bool, Option("--no-attach", help="Load the model here, even if a running kvchat lends it.")
]
ModelName = Annotated[
    str | None, model_option("A directory, a GGUF file, a Hugging Face id, or `starter`.", setting="model")
]
HubModel = Annotated[str | None, model_option("A directory, a Hugging Face id, or `starter`.")]
Device = Annotated[
    str | None, Option(help="auto, cpu, cuda or mps.", metavar="DEVICE", setting="engine.device")
]
Dtype = Annotated[
    str | None, Option(help="auto, float32, bfloat16 or float16.", metavar="DTYPE", setting="engine.dtype")
]
Weights = Annotated[
    str | None,
    Option(
        help="auto, fp32, bf16, fp16, int8 or int4 (quantized once, then stored).",
        metavar="FORM",
        setting="engine.weights",
    ),
]
CacheFormat = Annotated[
    str | None,
    Option(
        help="How KV is stored: exact, or approximate as fp8, int8, int4, int2; or which of it is read: "
        "window, knorm, keydiff, snapkv, shadow.",
        metavar="FORMAT",
        setting="engine.cache_format",
    ),
]
WhenFull = Annotated[
    str | None,
    Option(
        help="When KV has no room: evict refuses a conversation that outgrows memory, and removes the least "
        "recently used blocks from a full disk; compress stores both as int8, compress:int4 as int4; shadow "
        "moves a conversation's blocks to host memory, where each step reads those it chooses (both "
        "approximate).",
        metavar="CHOICE",
        setting="when_full",
    ),
]
DeviceBytes = Annotated[
    str | None,
    Option(
        help="Most device memory for KV blocks, such as 2GiB.", metavar="SIZE", setting="engine.device_bytes"
    ),
]
Files = Annotated[
    list[Path] | None,
    Option("--file", "-f", help="Put this file before the question; `-` is standard input.", metavar="FILE"),
]
PackName = Annotated[
    str | None,
    Option(
        "--pack",
        help="Start a new session with this pack; see `kvchat pack`.",
        metavar="NAME",
        needs_value=True,
        autocompletion=complete_pack,
    ),
]
RemoteUrl = Annotated[
    str | None,
    Option(
        help="Use this OpenAI-compatible server; `none` to run the model here.",
        metavar="URL",
        needs_value=True,
        setting="remote.url",
    ),
]
RemoteKeyFile = Annotated[
    Path | None,
    Option(help="The server's API key, in a file of your own.", metavar="FILE", setting="remote.key_file"),
]
NamedSession = Annotated[
    str | None,
    Option(
        "--session",
        "-s",
        help="Continue this session.",
        metavar="SESSION",
        needs_value=True,
        autocompletion=complete_session,
    ),
]
LastSession = Annotated[bool, Option("--continue", "-c", help="Continue the session used last.")]
NewSession = Annotated[
    str | None, Option("--new", help="Start a new session with this name.", metavar="NAME")
]
SessionWord = Annotated[str, session_argument()]
SessionWords = Annotated[list[str] | None, session_argument(metavar="[SESSION]", show_default=False)]


@option_class
class PlaceOptions:
    """Where things are and how much is said; every command takes these.

    Attributes:
        is_talk: whether the command has conversations, which a server may answer.
    """

    is_talk: ClassVar[bool] = False
    data_dir: Annotated[
        Path | None, Option(help="Directory of conversations.", metavar="DIR", setting="paths.data_dir")
    ] = None
    cache_dir: Annotated[
        Path | None, Option(help="Directory of KV blocks.", metavar="DIR", setting="paths.cache_dir")
    ] = None
    config: Annotated[
        Path | None, Option(help="Read this configuration file instead of your own.", metavar="FILE")
    ] = None
    quiet: Annotated[bool, Option("--quiet", "-q", help="Print only the result.")] = False
    verbose: Annotated[bool, Option("--verbose", "-v", help="Show the log on standard error.")] = False
    no_color: Annotated[bool, Option("--no-color", help="Use no colours.")] = False

    def flags(self) -> dict[str, object]:
        """Return the settings that were given here, by the dotted names of `config.KEYS`."""
        given: dict[str, object] = {"display.color": False} if self.no_color else {}
        for name, hint in get_type_hints(type(self), include_extras=True).items():
            for parameter in getattr(hint, "__metadata__", ()):
                if parameter.setting is not None and (value := getattr(self, name)) is not None:
                    given[parameter.setting] = value
        return given

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
class SessionOptions(ListOptions):
    """Options of commands about one session."""

    session: SessionWord


@option_class
class EngineOptions(PlaceOptions):
    """Options of commands that run a model."""

    model: ModelName = None
    system: Annotated[
        str | None, Option(help="System prompt of a new session.", metavar="TEXT", setting="system")
    ] = None
    max_tokens: Annotated[
        str | None,
        Option(
            help="Longest answer in tokens; `none` for no limit.", metavar="N", setting="sampling.max_tokens"
        ),
    ] = None
    temperature: Annotated[
        float | None, Option(help="0 is greedy.", metavar="X", setting="sampling.temperature")
    ] = None
    top_p: Annotated[
        float | None, Option(help="Nucleus sampling.", metavar="X", setting="sampling.top_p")
    ] = None
    top_k: Annotated[
        str | None, Option(help="Choose among the K likeliest tokens.", metavar="K", setting="sampling.top_k")
    ] = None
    seed: Annotated[
        str | None, Option(help="Seed of the sampling.", metavar="N", setting="sampling.seed")
    ] = None
    option: Annotated[
        list[str] | None,
        Option("--option", "-o", help="A sampling option as KEY=VALUE.", metavar="KEY=VALUE"),
    ] = None
    device: Device = None
    dtype: Dtype = None
    weights: Weights = None
    adapter: Annotated[
        Path | None,
        Option(help="A LoRA for the model, as peft saves one.", metavar="DIR", setting="engine.adapter"),
    ] = None
    cache_format: CacheFormat = None
    speculate: Annotated[
        str | None,
        Option(
            help="auto drafts tokens where text repeats; off never does.",
            metavar="HOW",
            setting="engine.speculate",
        ),
    ] = None
    kv_device_bytes: DeviceBytes = None
    kv_host_bytes: Annotated[
        str | None,
        Option(
            help="Host memory for blocks that the device evicts.", metavar="SIZE", setting="engine.host_bytes"
        ),
    ] = None
    kv_disk_bytes: Annotated[
        str | None, Option(help="Most disk space for KV blocks.", metavar="SIZE", setting="engine.disk_bytes")
    ] = None
    kv_disk_daily_bytes: Annotated[
        str | None,
        Option(
            help="Most bytes of KV blocks written to disk in a day.",
            metavar="SIZE",
            setting="engine.disk_daily_bytes",
        ),
    ] = None
    temp: Annotated[bool, Option("--temp", help="Store nothing: no text, no KV, no history.")] = False

    def settings(self, *, unlock: bool = True) -> Settings:
        # Nothing that is kept is opened for `--temp`.
        return PlaceOptions.settings(self, unlock=unlock and not self.temp)

    def flags(self) -> dict[str, object]:
        # Not super(): a dataclass with slots is a new class, which the zero-argument form does not know.
        return PlaceOptions.flags(self) | dict(_sampling_option(written) for written in self.option or ())


@option_class
class TalkOptions(EngineOptions):
    """Options of conversations, which a server may answer too."""

    is_talk: ClassVar[bool] = True
    remote: RemoteUrl = None
    remote_key_file: RemoteKeyFile = None


def refuse_several(given: Mapping[str, bool]) -> None:
    """Raise UsageError if more than one of these ways was chosen."""
    chosen = [name for name, is_given in given.items() if is_given]
    if len(chosen) > 1:
        raise UsageError(f"{' and '.join(chosen)} contradict each other; choose one")


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
