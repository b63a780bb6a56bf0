"""The options of `kvchat bench`."""

from pathlib import Path
from typing import Annotated

from kvchat.cli.parser.option_class import option_class
from kvchat.cli.parser.options import ListOptions
from kvchat.cli.parser.parameter import Argument, Option


@option_class
class BenchOptions(ListOptions):
    scenarios: Annotated[
        list[str] | None,
        Argument(
            help="What to measure, such as start or resume; all without any, but for cpu and gpu.",
            metavar="[SCENARIO]...",
            show_default=False,
        ),
    ] = None
    svg: Annotated[Path | None, Option(help="Draw a plot of each scenario there.", metavar="DIR")] = None
    quick: Annotated[bool, Option("--quick", help="Fewer rounds, where a scenario knows how.")] = False
