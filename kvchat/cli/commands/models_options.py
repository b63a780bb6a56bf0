"""The options of `kvchat models`."""

from typing import Annotated

from kvchat.cli.parser.option_class import option_class
from kvchat.cli.parser.options import ListOptions
from kvchat.cli.parser.parameter import Argument


@option_class
class ModelOptions(ListOptions):
    model: Annotated[str, Argument(help="A directory, a hub id, or `starter`.", metavar="MODEL")]
