"""`kvchat sessions`: name what is stored, keep it, remove it. Loads no model."""

import sys
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict
from functools import partial
from typing import Annotated

import typer

from kvchat.app.open_store import open_store
from kvchat.app.retention.session_removal import OTHERS, Removed, SessionService, branch_words, expected_words
from kvchat.cli.output.streams import Output, Status, as_json, tell_done, written_as_json
from kvchat.cli.parser.options import ListOptions, SessionWord, Yes, session_argument
from kvchat.cli.parser.typer_parameters import Argument, Option, option_class
from kvchat.errors import UsageError
from kvchat.session.tree import Session
from kvchat.text.figures import bytes_text, plural
from kvchat.text.fit_text import fitted, one_line


@option_class
class PinOptions(ListOptions):
    sessions: Annotated[list[str], session_argument("Sessions to pin.", metavar="SESSION...")]


@option_class
class RemoveOptions(ListOptions):
    sessions: Annotated[list[str], session_argument("Sessions to remove.", metavar="SESSION...")]
    branch: Annotated[
        str | None, Option("--branch", "-b", help="Remove this branch of the session alone.", metavar="NAME")
    ] = None
    yes: Yes = False


@option_class
class RenameOptions(ListOptions):
    session: SessionWord
    title: Annotated[str, Argument(help="Its new title.", metavar="TITLE")]


_TITLE_LEN = 60


def rename_session(options: RenameOptions) -> None:
    """Give a session another title."""
    with closing(open_store(options.settings())) as store:
        session = store.rename(store.find(options.session).id, options.title)
    title = fitted(one_line(session.title), _TITLE_LEN)
    values = {"session": session.id, "title": session.title}
    tell_done(options, values, f"{session.id} is now called {title}")


def _pin(options: PinOptions, *, is_pinned: bool) -> None:
    with closing(open_store(options.settings())) as store:
        sessions = [store.find(one) for one in options.sessions]
        for session in sessions:
            store.pin(session.id, is_pinned=is_pinned)
            if not as_json(options):
                words = "stays on top of the list, its KV on disk" if is_pinned else "is no longer pinned"
                Status(quiet=options.quiet).note(f"{session.id}  {one_line(session.title)} {words}")
    rows = ({"session": one.id, "title": one.title, "pinned": is_pinned} for one in sessions)
    written_as_json(options, Output(), rows)


pin_sessions = partial(_pin, is_pinned=True)
unpin_sessions = partial(_pin, is_pinned=False)


def remove_sessions(options: RemoveOptions) -> int | None:
    """Remove sessions or a branch, and the KV blocks that no other session needs."""
    if options.branch is not None:
        return _remove_branch(options, options.branch)
    status = Status(quiet=options.quiet)
    with closing(open_store(options.settings())) as store:
        doomed = list({one.id: one for one in map(store.find, options.sessions)}.values())
        if not options.yes and not _confirmed(store, doomed, status):
            status.note("nothing was removed")
            return 1
        removed = store.remove_sessions([one.id for one in doomed])
        left = store.still_readable()
    values = {"removed": [one.id for one in doomed]} | asdict(removed) | {"still_readable": [*left]}
    gone = [f"removed {one.id}  {one_line(one.title)}" for one in doomed]
    tell_done(options, values, *gone, _freed_words(removed), *left)
    return None


def _remove_branch(options: RemoveOptions, name: str) -> int | None:
    if len(options.sessions) > 1:
        raise UsageError("--branch removes a branch of one session: name one")
    status = Status(quiet=options.quiet)
    with closing(open_store(options.settings())) as store:
        session = store.find(options.sessions[0])
        plan = store.removal_of(session.id, name)
        if not options.yes and sys.stdin.isatty():
            status.note(branch_words(plan))
            status.note(expected_words(lambda: store.would_remove_branch(plan), OTHERS))
            question = f"remove branch {one_line(name)} of {session.id} ({one_line(session.title)}) for good?"
            if not typer.confirm(question, err=True):
                status.note("nothing was removed")
                return 1
        removed = store.remove_branch(session.id, name)
        left = store.still_readable() if plan.doomed else ()
    counts = {"num_turns": len(plan.doomed), "num_shared_turns": plan.num_shared, "still_readable": [*left]}
    shared = f"; {plural(plan.num_shared, 'message')} stay" if plan.num_shared else ""
    gone = f"{plural(len(plan.doomed), 'message')} gone{shared}"
    tell_done(
        options,
        {"session": session.id, "branch": name} | counts | asdict(removed),
        f"removed branch {one_line(name)} of {session.id}  {one_line(session.title)}: {gone}",
        _freed_words(removed, OTHERS),
        *left,
    )
    return None


def _freed_words(removed: Removed, owners: str = "sessions") -> str:
    words = f"freed {plural(removed.freed_blocks, 'block')}, {bytes_text(removed.freed_bytes)}"
    if removed.shared_blocks:
        shared = f"{plural(removed.shared_blocks, 'block')}, {bytes_text(removed.shared_bytes)}"
        words += f"; {shared} stay, since other {owners} share them"
    return words


def _confirmed(store: SessionService, doomed: Sequence[Session], status: Status) -> bool:
    """Ask on a terminal; elsewhere there is nobody to ask, and removing was asked for."""
    if not sys.stdin.isatty():
        return True
    status.note(expected_words(lambda: store.would_remove([one.id for one in doomed])))
    names = ", ".join(f"{one.id} ({one_line(one.title)})" for one in doomed)
    return typer.confirm(f"remove {names} for good?", err=True)
