"""The options of `kvchat pack`."""

from typing import Annotated

from kvchat.cli.parser.completion import complete_pack
from kvchat.cli.parser.option_class import option_class
from kvchat.cli.parser.option_types import Files, Json, Ndjson
from kvchat.cli.parser.options import EngineOptions, ListOptions
from kvchat.cli.parser.parameter import Argument, Option


@option_class
class MakeOptions(EngineOptions):
    """Options of making a pack."""

    name: Annotated[str, Argument(help="What to call it.", metavar="NAME")]
    file: Files = None
    json: Json = False
    ndjson: Ndjson = False
    force: Annotated[bool, Option("--force", help="Make it anew if it exists.")] = False
    no_attach: Annotated[
        bool, Option("--no-attach", help="Load the model here, even where a running kvchat lends it.")
    ] = False


@option_class
class PackOptions(ListOptions):
    """Options of commands about one pack."""

    name: Annotated[str, Argument(help="Its name.", metavar="NAME", autocompletion=complete_pack)]


@option_class
class RemovePacksOptions(ListOptions):
    names: Annotated[
        list[str], Argument(help="Packs to remove.", metavar="NAME...", autocompletion=complete_pack)
    ]
