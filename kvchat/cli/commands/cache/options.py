"""The options of `kvchat cache`."""

from typing import Annotated, ClassVar

from kvchat.cli.parser.completion import complete_session
from kvchat.cli.parser.option_class import option_class
from kvchat.cli.parser.option_types import RemoteKeyFile, RemoteUrl
from kvchat.cli.parser.options import ListOptions, given
from kvchat.cli.parser.parameter import Argument, Option
from kvchat.errors import UsageError
from kvchat.platform.parsing import parse_size


@option_class
class StatusOptions(ListOptions):
    """Options of saying what a cache amounts to; a server has one too."""

    is_talk: ClassVar[bool] = True
    remote: RemoteUrl = None
    remote_key_file: RemoteKeyFile = None

    def flags(self) -> dict[str, object]:
        flags = {"remote.url": self.remote, "remote.key_file": self.remote_key_file}
        return ListOptions.flags(self) | given(flags)


@option_class
class EvictOptions(ListOptions):
    """Options of removing blocks from the disk."""

    sessions: Annotated[
        list[str] | None,
        Argument(
            help="Remove what no other session shares.",
            metavar="[SESSION]...",
            show_default=False,
            autocompletion=complete_session,
        ),
    ] = None
    to: Annotated[
        str | None, Option(help="Remove the longest unused until so much is left.", metavar="SIZE")
    ] = None
    all: Annotated[bool, Option("--all", help="Remove all but what packs and pinned sessions keep.")] = False

    @property
    def to_bytes(self) -> int | None:
        """How much is to be left; None where sessions are named."""
        if self.to is None:
            return 0 if self.all else None
        try:
            return parse_size(self.to)
        except ValueError as error:
            raise UsageError(f"--to {error}") from error
