"""The options of `kvchat models`."""

from dataclasses import dataclass
from typing import Annotated

import typer

from kvchat.cli.options import ListOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelOptions(ListOptions):
    model: Annotated[str, typer.Argument(help="A directory, a hub id, or `starter`.", metavar="MODEL")]
