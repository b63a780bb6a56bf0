"""`kvchat [SESSION]`: the terminal interface."""

import gc
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, cast

from kvchat.app.composition import Kvchat, opened
from kvchat.app.engine_swap import EngineSwap
from kvchat.app.open_store import last_used, short_ids
from kvchat.cli.commands.ask.pack_use import chosen_pack, keep_again, mismatch, refuse_other_beginning
from kvchat.cli.output.logs import start_log
from kvchat.cli.parser.options import (
    LastSession,
    NamedSession,
    NewSession,
    PackName,
    SessionWords,
    TalkOptions,
    refuse_several,
)
from kvchat.cli.parser.typer_parameters import Option, option_class
from kvchat.errors import KvchatError, NoTerminal, SessionNotFound
from kvchat.session.tree import SessionId

if TYPE_CHECKING:
    from kvchat.app.interface_host import InterfaceHost


@option_class
class ResumeOptions(TalkOptions):
    session: SessionWords = None
    named: NamedSession = None
    continue_last: LastSession = False
    new: NewSession = None
    no_attach: Annotated[
        bool, Option("--no-attach", help="Load the model here; the interface always does.")
    ] = False
    pack: PackName = None


def resume(options: ResumeOptions) -> int:
    """Open the terminal interface and return its exit code."""
    refuse_several(
        {
            "SESSION": bool(options.session),
            "-s": options.named is not None,
            "-c": options.continue_last,
            "--new": options.new is not None,
            "--temp": options.temp,
        }
    )
    pack, settings = chosen_pack(options.pack, options.system, options.settings())
    engine, is_remote = EngineSwap(), settings.remote.url is not None
    with opened(settings, engine, temp=options.temp) as kvchat:
        reference = _session_id(kvchat, options)
        if pack is not None and reference is not None:
            refuse_other_beginning(pack, kvchat.store.session(reference))
        if not (sys.stdin.isatty() and sys.stderr.isatty()):
            raise NoTerminal(
                "the interface needs a terminal on standard input and standard error;"
                " `kvchat ask` works without one"
            )
        start_log(settings.paths)
        model = pack.model if pack is not None and options.model is None else options.model
        chat = kvchat.load_lazily(reference, model, options.adapter)
        if pack is not None:
            if chat.model != pack.model:  # what else differs only a loaded engine knows
                raise mismatch(pack)
            keep_again(pack, settings)
            chat.beginnings[pack.text] = pack.created_at
        if options.new is not None:
            reference = chat.create(title=options.new, system=settings.system).session.id
        # Imported last: a wrong word is answered without it.
        from kvchat.app.lazy import LazyHost
        from kvchat.ui.app import KvchatApp

        def make() -> "InterfaceHost":
            from kvchat.app.interface_host import InterfaceHost, RemoteHost

            kind = RemoteHost if is_remote else InterfaceHost
            return kind(settings, kvchat, chat, engine, options.config, options.flags())

        host = LazyHost(settings, make)

        def begin() -> None:
            gc.enable()
            host.made().begin()
            if not (options.temp or is_remote):
                kvchat.lend_if_possible()

        app = KvchatApp(
            chat,
            kvchat.engine,
            cast("InterfaceHost", host),
            reference,
            log_path=settings.paths.log_file,
            on_first_frame=begin,
        )
        try:
            code = app.run_in_terminal()
        finally:
            _forget_unused(kvchat, reference if options.new is not None else None)
        if code == 0 and not options.temp:
            _tell_how_to_resume(kvchat, app.session_left)
        return code


def _forget_unused(kvchat: Kvchat, session_id: SessionId | None) -> None:
    """Delete a session that was begun by name, in which nothing was said and for which nothing is kept."""
    store = kvchat.store
    with suppress(KvchatError):
        if session_id is None or store.all_turns(session_id) or store.unsent.holds(session_id):
            return
        store.delete_session(session_id)


def _tell_how_to_resume(kvchat: Kvchat, session_id: SessionId | None) -> None:
    """Say on a terminal how to come back to the session that was left, if it is stored."""
    if sys.stdout is None or not sys.stdout.isatty():
        return
    with suppress(KvchatError):
        names = short_ids(summary.session.id for summary in kvchat.store.list_sessions())
        if session_id in names:
            print(f"resume with: kvchat {names[session_id]}")


def _session_id(kvchat: Kvchat, options: ResumeOptions) -> SessionId | None:
    """Return the id of the session that is meant, None for a new one."""
    if options.continue_last:
        return last_used(kvchat.store)
    reference = " ".join(options.session) if options.session else options.named  # a title needs no quotes
    if reference is None:
        return None
    try:
        return kvchat.store.find(reference).id
    except SessionNotFound as error:
        from difflib import get_close_matches

        from kvchat.cli.parser.command_table import COMMANDS

        commands = {command.words.split()[0] for command in COMMANDS}
        near = get_close_matches(reference.split()[0], sorted(commands), n=1)
        if not near:
            raise
        raise SessionNotFound(f"{error}\nDid you mean the command `kvchat {near[0]}`?") from error
