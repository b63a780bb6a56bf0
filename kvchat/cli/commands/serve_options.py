"""The options of `kvchat serve`."""

from pathlib import Path
from typing import Annotated

from kvchat.cli.parser.option_class import option_class
from kvchat.cli.parser.option_types import Json, Ndjson
from kvchat.cli.parser.options import EngineOptions
from kvchat.cli.parser.parameter import Option


@option_class
class ServeOptions(EngineOptions):
    json: Json = False
    ndjson: Ndjson = False
    socket_only: Annotated[
        bool, Option("--socket-only", help="Open no port; only lend the engine to `kvchat ask`.")
    ] = False
    port: Annotated[
        int,
        Option(help="Of this machine alone; 0: the system chooses.", metavar="PORT", min=0, max=65535),
    ] = 0
    api_key_file: Annotated[
        Path | None,
        Option(help="The key clients have to know; else one is made.", metavar="FILE"),
    ] = None
    idle: Annotated[
        float | None,
        Option(help="End after so many seconds without a request; 0 never.", metavar="SECONDS", min=0),
    ] = None
