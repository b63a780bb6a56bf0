"""The options of `kvchat config`."""

from dataclasses import dataclass
from typing import Annotated

import typer

from kvchat.cli.completion import complete_setting
from kvchat.cli.options import EngineOptions, PlaceOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class ShowOptions(EngineOptions):
    """Any flag may be given, to see what it overrules."""

    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SetOptions(PlaceOptions):
    name: Annotated[
        str,
        typer.Argument(help="As `config show` names it.", metavar="NAME", autocompletion=complete_setting),
    ]
    value: Annotated[
        str | None,
        typer.Argument(help="The value; `none` lifts a limit.", metavar="VALUE", show_default=False),
    ] = None
    unset: Annotated[bool, typer.Option("--unset", help="Take the setting out of the file.")] = False
