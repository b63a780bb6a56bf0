"""Options of `kvchat ask`, apart from the command: `kvchat ask --help` loads nothing else."""

from typing import Annotated

from kvchat.cli.parser.options import (
    Files,
    LastSession,
    NamedSession,
    NewSession,
    NoAttach,
    PackName,
    TalkOptions,
    WhenFull,
)
from kvchat.cli.parser.typer_parameters import Argument, Option, option_class


@option_class
class AskOptions(TalkOptions):
    question: Annotated[
        list[str] | None,
        Argument(help="The question.", metavar="[QUESTION]...", show_default=False, any_bytes=True),
    ] = None
    session: NamedSession = None
    continue_last: LastSession = False
    new: NewSession = None
    pack: PackName = None
    file: Files = None
    edit: Annotated[
        int | None, Option(help="Replace your Nth message from the end, on a new branch.", metavar="N", min=1)
    ] = None
    json: Annotated[bool, Option("--json", help="Print one JSON object at the end.")] = False
    ndjson: Annotated[bool, Option("--ndjson", help="Print one JSON event per line.")] = False
    no_attach: NoAttach = False
    num: Annotated[
        int, Option("-n", help="Number of answers, each on its own branch.", metavar="N", min=1, max=8)
    ] = 1
    strict_cache: Annotated[
        bool, Option("--strict-cache", help="Exit with 7 instead of recomputing what was computed before.")
    ] = False
    when_full: WhenFull = None
    no_stats: Annotated[bool, Option("--no-stats", help="Print no statistics.")] = False
    fail_on_length: Annotated[
        bool, Option("--fail-on-length", help="Exit with 8 if the answer was cut off by its length.")
    ] = False

    def flags(self) -> dict[str, object]:
        return TalkOptions.flags(self) | ({"display.stats": False} if self.no_stats else {})
