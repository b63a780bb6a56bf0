"""The options of `kvchat serve`."""

from dataclasses import dataclass
from typing import Annotated

import typer

from kvchat.cli.options import EngineOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeOptions(EngineOptions):
    socket_only: Annotated[
        bool, typer.Option("--socket-only", help="Open no port; only lend the engine to `kvchat ask`.")
    ] = False
    idle: Annotated[
        float | None,
        typer.Option(help="End after so many seconds without a request; 0 never.", metavar="SECONDS", min=0),
    ] = None
