"""The options of commands about sessions, and of what is written, read and computed again of them."""

from pathlib import Path
from typing import Annotated

from kvchat.app.export_format import Format
from kvchat.cli.parser.completion import complete_session
from kvchat.cli.parser.option_class import Argument, Option, option_class
from kvchat.cli.parser.option_types import (
    CacheFormat,
    Device,
    DeviceBytes,
    Dtype,
    HubModel,
    Json,
    Ndjson,
    NoKv,
    SessionWord,
    Weights,
    Yes,
)
from kvchat.cli.parser.options import EngineOptions, ListOptions, PlaceOptions, given

MOST_HITS = 1_000_000


@option_class
class SessionOptions(ListOptions):
    """Options of commands about one session."""

    session: SessionWord


@option_class
class ForkOptions(SessionOptions):
    """Options of beginning a branch."""

    name: Annotated[
        str, Argument(help="Its name; else a free one.", metavar="[NAME]", show_default=False)
    ] = ""
    branch: Annotated[
        str | None, Option(help="Fork this branch; else the one used last.", metavar="NAME")
    ] = None
    at: Annotated[
        str | None, Option(help="End with this message (`sessions tree --json` has ids).", metavar="ID")
    ] = None


@option_class
class WhyOptions(SessionOptions):
    """Options of explaining an answer."""

    number: Annotated[int, Argument(help="Answers from the end.", metavar="[N]", min=1)] = 1
    branch: Annotated[
        str | None, Option(help="Of this branch; else of the one used last.", metavar="NAME")
    ] = None
    model: Annotated[
        str | None,
        Option("--model", "-m", help="Whose tokenizer to read; else the answer's.", metavar="MODEL"),
    ] = None


@option_class
class ReviseOptions(EngineOptions):
    """Options of taking messages back and of leaving them out."""

    session: SessionWord
    number: Annotated[int, Argument(help="Messages from the end.", metavar="[N]", min=1)] = 1
    yes: Yes = False
    dry_run: Annotated[bool, Option("--dry-run", help="Only say what it would cost.")] = False
    json: Json = False
    ndjson: Ndjson = False


@option_class
class ExportOptions(SessionOptions):
    """Options of writing a session to a file."""

    output: Annotated[
        str | None, Option("--output", "-o", help="The file; `-` is standard output.", metavar="FILE")
    ] = None
    format: Annotated[
        Format | None,
        Option(help="bundle (with KV), md, html or json; else what FILE's name says, or bundle."),
    ] = None
    no_kv: NoKv = False
    branch: Annotated[
        str | None,
        Option(help="Take this branch; else all, or in md and html the active one.", metavar="NAME"),
    ] = None
    force: Annotated[bool, Option("--force", help="Replace the file if it exists.")] = False


@option_class
class ImportOptions(ListOptions):
    """Options of reading bundles."""

    files: Annotated[
        list[Path],
        Argument(help="Bundles, ChatGPT's conversations.json, or `llm logs --json`.", metavar="FILE..."),
    ]
    model: Annotated[
        str | None,
        Option("--model", "-m", help="Go on with this model, not the one it names.", metavar="MODEL"),
    ] = None
    dtype: Dtype = None
    cache_format: CacheFormat = None
    no_kv: NoKv = False

    def flags(self) -> dict[str, object]:
        flags = {"engine.dtype": self.dtype, "engine.cache_format": self.cache_format}
        return PlaceOptions.flags(self) | given(flags)


@option_class
class VerifyOptions(ListOptions):
    """How much KV is computed again, and with which model."""

    model: HubModel = None
    all: Annotated[bool, Option("--all", help="Compute everything again.")] = False
    sample: Annotated[
        int | None, Option(help="Compute N blocks again (8 if nothing is said).", metavar="N", min=1)
    ] = None
    seed: Annotated[str | None, Option(help="Choose the same blocks again.", metavar="TEXT")] = None
    device: Device = None
    dtype: Dtype = None
    weights: Weights = None
    cache_format: CacheFormat = None
    kv_device_bytes: DeviceBytes = None

    def flags(self) -> dict[str, object]:
        flags = {
            "engine.device": self.device,
            "engine.dtype": self.dtype,
            "engine.weights": self.weights,
            "engine.cache_format": self.cache_format,
            "engine.device_bytes": self.kv_device_bytes,
        }
        return PlaceOptions.flags(self) | given(flags)


@option_class
class VerifySessionOptions(VerifyOptions):
    session: SessionWord


@option_class
class VerifyCacheOptions(VerifyOptions):
    pass


@option_class
class PinOptions(ListOptions):
    sessions: Annotated[
        list[str],
        Argument(help="Sessions to pin.", metavar="SESSION...", autocompletion=complete_session),
    ]


@option_class
class RemoveOptions(ListOptions):
    sessions: Annotated[
        list[str],
        Argument(help="Sessions to remove.", metavar="SESSION...", autocompletion=complete_session),
    ]
    branch: Annotated[
        str | None,
        Option("--branch", "-b", help="Remove this branch of the session alone.", metavar="NAME"),
    ] = None
    yes: Yes = False


@option_class
class RenameOptions(ListOptions):
    session: SessionWord
    title: Annotated[str, Argument(help="Its new title.", metavar="TITLE")]


@option_class
class SearchOptions(ListOptions):
    words: Annotated[list[str], Argument(help="Words that a message must hold.", metavar="WORD...")]
    limit: Annotated[int, Option(help="Most messages to show.", metavar="N", min=1, max=MOST_HITS)] = 20
