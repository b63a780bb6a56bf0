"""The options of `kvchat bench`."""

from pathlib import Path
from typing import Annotated

import typer

from kvchat.cli.option_class import option_class
from kvchat.cli.options import ListOptions


@option_class
class BenchOptions(ListOptions):
    scenarios: Annotated[
        list[str] | None,
        typer.Argument(
            help="What to measure, such as start or resume; all without any, but for cpu and gpu.",
            metavar="[SCENARIO]...",
            show_default=False,
        ),
    ] = None
    svg: Annotated[Path | None, typer.Option(help="Draw a plot of each scenario there.", metavar="DIR")] = (
        None
    )
    quick: Annotated[bool, typer.Option("--quick", help="Fewer rounds, where a scenario knows how.")] = False
