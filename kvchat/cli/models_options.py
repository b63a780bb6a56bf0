"""The options of `kvchat models`."""

from typing import Annotated

from kvchat.cli.option_class import option_class
from kvchat.cli.options import ListOptions
from kvchat.cli.parameter import Argument


@option_class
class ModelOptions(ListOptions):
    model: Annotated[str, Argument(help="A directory, a hub id, or `starter`.", metavar="MODEL")]
