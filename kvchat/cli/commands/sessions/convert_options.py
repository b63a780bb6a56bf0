"""The options of `kvchat sessions convert`."""

from typing import Annotated

from kvchat.cli.commands.sessions.options import SessionOptions
from kvchat.cli.parser.option_class import option_class
from kvchat.cli.parser.option_types import Device, Dtype, HubModel, Weights
from kvchat.cli.parser.options import PlaceOptions, given
from kvchat.cli.parser.parameter import Argument, Option


@option_class
class ConvertOptions(SessionOptions):
    """Options of storing a session's KV in another format."""

    cache_format: Annotated[
        str,
        Argument(help="fp8, int8, int4, int2, k=int8,v=int4 …, or exact.", metavar="FORMAT"),
    ]
    last: Annotated[
        int, Option(help="Show the loss on the last N tokens of answers.", metavar="N", min=1)
    ] = 64
    no_gauge: Annotated[bool, Option("--no-gauge", help="Do not measure the loss.")] = False
    yes: Annotated[bool, Option("--yes", "-y", help="Do not ask.")] = False
    dry_run: Annotated[bool, Option("--dry-run", help="Only say what it would save and lose.")] = False
    model: HubModel = None
    device: Device = None
    dtype: Dtype = None
    weights: Weights = None

    def flags(self) -> dict[str, object]:
        flags = {"engine.device": self.device, "engine.dtype": self.dtype, "engine.weights": self.weights}
        return PlaceOptions.flags(self) | given(flags)
