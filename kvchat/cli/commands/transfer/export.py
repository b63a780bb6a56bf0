"""`kvchat export`: a session as one file, with its KV or as text to read. Loads no model."""

from contextlib import closing
from pathlib import Path
from typing import Annotated

from kvchat.app.export.exporter import Exporter, target_of
from kvchat.app.export.formats import Format, format_of
from kvchat.app.open_store import open_store
from kvchat.cli.output.streams import Output, Status, as_json, tell_done
from kvchat.cli.parser.options import NoKv, SessionOptions
from kvchat.cli.parser.typer_parameters import Option, option_class
from kvchat.errors import FileTaken, UsageError


@option_class
class ExportOptions(SessionOptions):
    output: Annotated[
        str | None,
        Option("--output", "-o", help="The file; `-` is standard output.", metavar="FILE", needs_value=True),
    ] = None
    format: Annotated[
        Format | None,
        Option(help="bundle (with KV), md, html or json; else what FILE's name says, or bundle."),
    ] = None
    no_kv: NoKv = False
    branch: Annotated[
        str | None,
        Option(help="Take this branch; else all, or in md and html the active one.", metavar="NAME"),
    ] = None
    force: Annotated[bool, Option("--force", help="Replace the file if it exists.")] = False


def export_session(options: ExportOptions) -> None:
    """Write a session to a file, or to standard output."""
    settings = options.settings()
    status = Status(quiet=options.quiet)
    output = Path(options.output) if options.output not in (None, "-") else None
    format = options.format or (output and format_of(output)) or Format.BUNDLE
    with closing(open_store(settings)) as store:
        session = store.find(options.session)
        if options.output == "-":
            if format is Format.BUNDLE and Output().is_terminal:
                raise UsageError("a bundle is not text for a terminal; give a file with -o, or a pipe")
            if as_json(options):
                raise UsageError("--json and -o - both write to standard output; choose one")
            target = None
        else:
            target = target_of(output, session, format)
            if target.exists() and not options.force:
                raise FileTaken(f"{target} exists; choose another name with -o, or replace it with --force")
        exporter = Exporter(
            settings, store, with_kv=not options.no_kv, show=status.show, stdout=Output().data
        )
        exported = exporter.write(session, options.branch, format, target)
    status.clear()
    figures = {"turns": exported.num_turns, "tokens": exported.num_tokens, "blocks": exported.num_blocks}
    values = {"file": None if target is None else str(target), "session": session.id, "format": format}
    written = {"bytes": exported.num_bytes, "digest": exported.digest}
    tell_done(options, values | figures | written, exported.words)
