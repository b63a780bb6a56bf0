"""The options of `kvchat cache gauge`."""

from pathlib import Path
from typing import Annotated

from kvchat.cli.parser.completion import complete_session
from kvchat.cli.parser.option_class import option_class
from kvchat.cli.parser.option_types import SESSION_HELP, Device, Dtype, HubModel, Weights
from kvchat.cli.parser.options import ListOptions, PlaceOptions, given
from kvchat.cli.parser.parameter import Argument, Option


@option_class
class GaugeOptions(ListOptions):
    """Options of measuring what cache formats lose."""

    session: Annotated[
        str | None,
        Argument(
            help=f"{SESSION_HELP} Without one: the built-in questions, with the starter model.",
            metavar="[SESSION]",
            show_default=False,
            autocompletion=complete_session,
        ),
    ] = None
    cache_format: Annotated[
        list[str] | None,
        Option(help="Measure this format; may be given several times.", metavar="FORMAT"),
    ] = None
    last: Annotated[int, Option(help="Replay the last N tokens of answers.", metavar="N", min=1)] = 128
    keep: Annotated[
        float,
        Option(help="Recommend what puts the same token first this often.", metavar="SHARE", min=0, max=1),
    ] = 0.99
    layers: Annotated[
        str | None, Option(help="Also convert each layer alone to this format.", metavar="FORMAT")
    ] = None
    converted: Annotated[
        bool,
        Option("--converted", help="Measure converting what there is, not computing all in a format."),
    ] = False
    branch: Annotated[
        str | None, Option(help="Measure this branch; else the one used last.", metavar="NAME")
    ] = None
    svg: Annotated[Path | None, Option(help="Draw bytes against loss into this file.", metavar="FILE")] = None
    figures: Annotated[
        Path | None, Option(help="Also write all figures into this file, as JSON.", metavar="FILE")
    ] = None
    quick: Annotated[bool, Option("--quick", help="Of the built-in questions ask a tenth.")] = False
    model: HubModel = None
    device: Device = None
    dtype: Dtype = None
    weights: Weights = None

    def flags(self) -> dict[str, object]:
        flags = {"engine.device": self.device, "engine.dtype": self.dtype, "engine.weights": self.weights}
        return PlaceOptions.flags(self) | given(flags)
