"""The options of `kvchat config`."""

from typing import Annotated

from kvchat.cli.parser.completion import complete_setting
from kvchat.cli.parser.option_class import option_class
from kvchat.cli.parser.option_types import Json, Ndjson
from kvchat.cli.parser.options import EngineOptions, ListOptions
from kvchat.cli.parser.parameter import Argument, Option


@option_class
class ShowOptions(EngineOptions):
    """Any flag may be given, to see what it overrules."""

    json: Json = False
    ndjson: Ndjson = False


@option_class
class SetOptions(ListOptions):
    name: Annotated[
        str,
        Argument(help="As `config show` names it.", metavar="NAME", autocompletion=complete_setting),
    ]
    value: Annotated[
        str | None,
        Argument(help="The value; `none` lifts a limit.", metavar="VALUE", show_default=False),
    ] = None
    unset: Annotated[bool, Option("--unset", help="Take the setting out of the file.")] = False
