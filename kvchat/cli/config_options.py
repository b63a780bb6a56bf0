"""The options of `kvchat config`."""

from typing import Annotated

import typer

from kvchat.cli.completion import complete_setting
from kvchat.cli.option_class import option_class
from kvchat.cli.option_types import Json, Ndjson
from kvchat.cli.options import EngineOptions, ListOptions


@option_class
class ShowOptions(EngineOptions):
    """Any flag may be given, to see what it overrules."""

    json: Json = False
    ndjson: Ndjson = False


@option_class
class SetOptions(ListOptions):
    name: Annotated[
        str,
        typer.Argument(help="As `config show` names it.", metavar="NAME", autocompletion=complete_setting),
    ]
    value: Annotated[
        str | None,
        typer.Argument(help="The value; `none` lifts a limit.", metavar="VALUE", show_default=False),
    ] = None
    unset: Annotated[bool, typer.Option("--unset", help="Take the setting out of the file.")] = False
