"""`kvchat sessions fork`, `undo` and `drop`: revisions of a stored conversation.

A fork needs no model. The others say exactly what they cost before they are done; only the engine knows it.
"""

import sys
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict
from functools import partial
from typing import Annotated

import typer

from kvchat.app.composition import opened
from kvchat.app.open_store import open_store
from kvchat.chat.conversation import Conversation
from kvchat.chat.events import EditCost, Revision
from kvchat.chat.service import Chat
from kvchat.cli.output.engine_wait import wait_until_loaded
from kvchat.cli.output.streams import Output, Status, as_json, tell_done
from kvchat.cli.parser.options import EngineOptions, Json, Ndjson, SessionOptions, SessionWord, Yes
from kvchat.cli.parser.typer_parameters import Argument, Option, option_class
from kvchat.engine.worker import Worker
from kvchat.errors import UsageError
from kvchat.session.tree import Finish, TurnId, nth_last_question
from kvchat.text.fit_text import one_line
from kvchat.text.revision import drop_words, excerpt, undo_words


@option_class
class ForkOptions(SessionOptions):
    name: Annotated[
        str, Argument(help="Its name; else a free one.", metavar="[NAME]", show_default=False)
    ] = ""
    branch: Annotated[
        str | None, Option(help="Fork this branch; else the one used last.", metavar="NAME")
    ] = None
    at: Annotated[
        str | None, Option(help="End with this message (`sessions tree --json` has ids).", metavar="ID")
    ] = None


@option_class
class ReviseOptions(EngineOptions):
    session: SessionWord
    number: Annotated[int, Argument(help="Messages from the end.", metavar="[N]", min=1)] = 1
    yes: Yes = False
    dry_run: Annotated[bool, Option("--dry-run", help="Show only what it would cost.")] = False
    json: Json = False
    ndjson: Ndjson = False


Plan = Callable[[Chat, Conversation, int], Revision]
Words = Callable[[Revision, EditCost], str]


def fork_session(options: ForkOptions) -> None:
    """Begin a branch at the end of another, or at an earlier message; it is the active one from then on."""
    with closing(open_store(options.settings())) as store:
        session = store.find(options.session)
        beside = store.branch(session.id, options.branch or session.active_branch)
        path = store.turns_to(beside.leaf_id)
        leaf = path[-1] if path else None
        if options.at is not None:
            leaf = next((turn for turn in store.all_turns(session.id) if turn.id == options.at), None)
            if leaf is None:
                raise UsageError(
                    f"{session.id} has no message {options.at!r}; `sessions tree --json` has the ids"
                )
        if leaf is not None and leaf.finish is Finish.PARTIAL:
            raise UsageError("this answer is still being written; wait for its end, then fork")
        leaf_id: TurnId | None = None if leaf is None else leaf.id
        branch = store.create_branch(session.id, leaf_id=leaf_id, name=options.name, beside=beside.name)
    values = {"session": session.id, "branch": branch.name, "leaf": branch.leaf_id}
    tell_done(options, values, f"on branch {one_line(branch.name)}, which shares everything up to here")


def _revise(options: ReviseOptions, plan: Plan, words: Words) -> int | None:
    """Say what a revision costs, ask, and go on along it."""
    settings, status = options.settings(), Status(quiet=options.quiet)
    with opened(settings, Worker) as kvchat:
        chat = kvchat.load(options.session, options.model, options.adapter)
        conversation = chat.open(options.session)
        # What cannot be done is told before a model is loaded.
        revision = plan(chat, conversation, options.number)
        assert isinstance(kvchat.engine, Worker)
        kvchat.engine.start()
        wait_until_loaded(kvchat.engine, status)
        cost = chat.revision_cost(conversation, revision)
        if not as_json(options):
            status.note(f"{excerpt(revision)}\n{words(revision, cost)}")
        # Where there is no terminal there is nobody to ask, and nothing is lost.
        is_sure = options.yes or not sys.stdin.isatty()
        is_done = not options.dry_run and (is_sure or typer.confirm("continue?", err=True))
        if is_done:
            chat.revise(conversation, revision)
        if as_json(options):
            counts = {"dropped_turns": len(revision.dropped), "following_turns": len(revision.anew)}
            branches = {"branch": conversation.branch.name, "stays_on": revision.stays_on}
            done = {"session": conversation.session.id, "done": is_done}
            Output().json(done | branches | counts | asdict(cost))
        elif is_done:
            status.note(f"on branch {one_line(conversation.branch.name)}")
        elif not options.dry_run:
            status.note("nothing was changed")
            return 1
    return None


def _plan_drop(chat: Chat, conversation: Conversation, num: int) -> Revision:
    question = nth_last_question(conversation.turns, num)
    if question is None:
        raise UsageError(f"there is no message {num} from the end to leave out")
    return chat.plan_drop(conversation, question.id)


undo_messages = partial(_revise, plan=Chat.plan_undo, words=undo_words)
drop_message = partial(_revise, plan=_plan_drop, words=drop_words)
