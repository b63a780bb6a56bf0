"""The options of `kvchat models`."""

from typing import Annotated

import typer

from kvchat.cli.option_class import option_class
from kvchat.cli.options import ListOptions


@option_class
class ModelOptions(ListOptions):
    model: Annotated[str, typer.Argument(help="A directory, a hub id, or `starter`.", metavar="MODEL")]
