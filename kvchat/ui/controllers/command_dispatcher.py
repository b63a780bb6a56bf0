"""Command dispatcher: runs slash commands."""

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Protocol

from kvchat.session.tree import BranchName, Role, SessionId, Turn
from kvchat.text.answer_footer import MAKE_ROOM, is_full
from kvchat.text.cache_miss import why_words
from kvchat.text.figures import plural
from kvchat.text.fit_text import one_line
from kvchat.ui.commands import completions, find_command, split_command
from kvchat.ui.controllers.clipboard import Clipboard, write_screen
from kvchat.ui.controllers.composer import ComposerController
from kvchat.ui.controllers.conversations import ConversationController
from kvchat.ui.controllers.dialogs import Work
from kvchat.ui.controllers.formats import FormatController
from kvchat.ui.controllers.message_actions import MessageActionsController
from kvchat.ui.controllers.revisions import RevisionController
from kvchat.ui.controllers.screen_services import ScreenServices
from kvchat.ui.controllers.sessions import SessionController
from kvchat.ui.controllers.settings import SettingsController
from kvchat.ui.state.completion import FORMATS, Argument, cache_arguments, export_arguments, switch_arguments
from kvchat.ui.state.conversation_tab import Draft, QueuedTurn

if TYPE_CHECKING:
    from kvchat.chat.conversation import Conversation

_COMPARED = "3"


class CommandScreen(ScreenServices, Protocol):
    """The chat screen with the controllers that carry commands out."""

    revisions: RevisionController
    sessions: SessionController
    branching: MessageActionsController
    clipboard: Clipboard
    composer: ComposerController
    settings: SettingsController
    formats: FormatController
    conversations: ConversationController


class CommandDispatcher:
    """Runs commands for the chat screen. Anything that may read a file runs in a thread."""

    def __init__(self, screen: CommandScreen) -> None:
        self._screen = screen
        self._chat = screen.chat
        self._turns = screen.turns
        self._actions: dict[str, Callable[[str], object]] = {
            "help": self.help,
            "new": self.new,
            "summary": self.sum_up,
            "temp": lambda _: screen.conversations.open_temporary(),
            "fork": self.fork,
            "retry": self.retry,
            "tokens": self.tokens,
            "aside": self.aside,
            "attach": screen.composer.attach,
            "detach": self.detach,
            "answer": self.answer,
            "notices": lambda _: screen.begin(partial(screen.notices.show, screen.clipboard.copy)),
            "history": lambda _: screen.begin(screen.composer.find_message),
            "model": self.model,
            "reload": lambda _: screen.settings.reload(),
            "set": self.set,
            "theme": screen.settings.set_theme,
            "copy": self.copy,
            "open": self.open,
            "edit": self.edit,
            "undo": self.undo,
            "drop": self.drop,
            "continue": self.go_on,
            "stop": lambda _: screen.stop_answer(),
            "switch": self.switch,
            "tree": self.tree,
            "search": screen.panes.find,
            "pin": lambda _: self._run_here("pin"),
            "system": self.system,
            "cache": self.cache,
            "gauge": self.gauge,
            "export": self.export,
            "screen": self.screen,
            "why": self.why,
            "title": self.rename,
            "delete": lambda _: self._run_here("delete"),
            "quit": lambda _: screen.quit(),
        }

        screen.prompt.sources = {
            "switch": self._other_names,
            "theme": screen.settings.themes,
            "set": screen.settings.arguments,
            "cache": cache_arguments,
            "gauge": lambda _: (Argument(usage=name) for name in FORMATS[1:]),
            "export": export_arguments,
        }

    def run(self, line: str) -> None:
        """Run a command line, or say why not."""
        name, argument = split_command(line)
        command = find_command(name)
        if command is None:
            near = completions(f"/{name[:2]}")
            guess = f"; did you mean /{near[0].name}?" if near else ""
            self._screen.warn(f"there is no /{name}{guess} (// sends it as text, f1 lists the commands)")
            self._screen.prompt.restore_command(line)
        elif command.needs_argument and not argument:
            if command.name not in self._screen.prompt.sources:
                self._screen.warn(f"usage: {command.usage}")
            self._screen.prompt.restore_command(line + " ")
        elif "\n" in line and not command.takes_lines:
            self._screen.warn(f"/{command.name} takes one line; // sends this as text")
            self._screen.prompt.restore_command(line)
        else:
            self._actions[command.name](argument)

    def run_on_line(self, name: str, session_id: SessionId, branch: BranchName | None) -> None:
        """Run a command for a line of the list, whatever is on screen."""
        sessions = self._screen.sessions
        actions: dict[str, Work] = {
            "title": partial(sessions.ask_for_title, session_id),
            "pin": partial(sessions.pin, session_id),
            "export": partial(sessions.ask_for_file, session_id, branch),
            "delete": partial(sessions.ask_to_delete, session_id, branch),
        }
        self._screen.begin(actions[name])

    def _run_here(self, name: str) -> None:
        """Run the same for the session on screen."""
        conversation = self._stored()
        if conversation is not None:
            self.run_on_line(name, conversation.session.id, None)

    def help(self, _argument: str) -> None:
        from kvchat.ui.screens.help import HelpScreen

        if not self._screen.dialogs.is_open:
            self._screen.app.push_screen(HelpScreen(self._screen.own_keys))

    def answer(self, _argument: str) -> None:
        """Let a question come that waited because something was typed."""
        if not self._screen.dialogs.open_pending():
            self._screen.tell("no question waits")

    def new(self, title: str = "") -> None:
        self._screen.conversations.open_draft(Draft(title=title, system=self._turns.system))

    def switch(self, reference: str) -> None:
        if not reference:
            self._screen.show_sessions_pane()
        else:
            self._screen.conversations.open_with(lambda: self._opened(reference))

    def tree(self, _argument: str) -> None:
        """Let the person go to another branch of the conversation on screen."""
        self._screen.show_sessions_pane()
        self._screen.listed.show_active()

    def _other_names(self, _typed: str) -> Iterable[Argument]:
        here = self._turns.conversation
        place = (here.session.id, here.branch.name) if here is not None else None
        stored = self._screen.sessions.sessions
        return switch_arguments(stored.entries, stored.titles, place)

    def fork(self, name: str = "") -> None:
        if self._stored() is not None and self._is_free("fork"):
            self._screen.branching.fork(name)

    def sum_up(self, _argument: str = "") -> None:
        if self._stored() is not None and self._is_free("sum up"):
            self._screen.branching.sum_up()

    def retry(self, argument: str = "") -> None:
        if self._stored() is None or not self._is_free("retry"):
            return
        if argument in ("", "1"):
            self._screen.begin(self._screen.branching.retry)
        elif argument.isdecimal() and len(argument) < 4:
            self._screen.begin(partial(self._screen.branching.compare, int(argument)))
        else:
            self._screen.warn(f"how many answers? /retry 3, not /retry {argument}")

    def tokens(self, argument: str = "") -> None:
        answer = self._answer("open as tokens", argument)
        if answer is not None and self._is_free("open it"):
            self._screen.begin(partial(self._screen.branching.open_tokens, self._turns.stored, answer))

    def aside(self, text: str = "") -> None:
        if self._screen.conversations.asides.shown is not None and not text:
            self._screen.conversations.asides.end()
        elif self._stored() is not None and self._is_free("ask aside"):
            self._screen.begin(partial(self._screen.conversations.asides.begin, text))

    def model(self, name: str = "") -> None:
        if name == "stop":
            if not self._screen.settings.stop_download():
                self._screen.warn("no model is being downloaded")
        elif name:
            self._screen.begin(partial(self._screen.settings.use_model, name))
        else:
            self._screen.begin(self._screen.settings.show_models)

    def set(self, argument: str = "") -> None:
        settings, (name, _, value) = self._screen.settings, argument.partition(" ")
        if value.strip():
            self._screen.begin(partial(settings.change, name, value.strip()))
        else:
            self._screen.begin(partial(settings.ask_for, name) if name else settings.show_settings)

    def detach(self, _argument: str = "") -> None:
        if not self._screen.composer.detach():
            self._screen.warn("nothing is attached")

    def copy(self, argument: str = "") -> None:
        answer = self._answer("copy", "" if argument == "code" else argument)
        if answer is not None:
            self.run_on(answer, "code" if argument == "code" else "copy")

    def open(self, argument: str = "") -> None:
        answer = self._answer("open", argument)
        if answer is not None:
            self.run_on(answer, "open")

    def run_on(self, turn: Turn, name: str) -> None:
        if name in ("edit", "drop", "retry", "compare") and not self._is_free(name):
            return
        screen = self._screen
        actions: dict[str, Callable[[], object]] = {
            "edit": partial(screen.revisions.begin_edit, turn),
            "drop": partial(screen.revisions.drop, turn),
            "retry": self.retry,
            "compare": partial(self.retry, _COMPARED),
            "why": partial(self._explain, turn),
            "copy": partial(screen.begin, partial(screen.clipboard.copy, turn.text)),
            "code": partial(screen.begin, partial(screen.clipboard.copy_code, turn)),
            "open": partial(screen.clipboard.open, turn),
        }
        actions[name]()

    def go_on(self, _argument: str = "") -> None:
        """Go on with the answer on screen; where that is complete, open one that was interrupted."""
        shown, left = self._turns.conversation, self._screen.sessions.interrupted
        if left is not None and not (shown and shown.turns and shown.turns[-1].is_open):
            self.switch(left)
            return
        conversation = self._stored()
        if conversation is None or not self._is_free("continue"):
            return
        snapshot = self._screen.snapshot
        limit = None if snapshot is None else snapshot.max_context
        if conversation.turns and is_full(conversation.turns[-1], limit):
            self._screen.warn(f"The context is full: {MAKE_ROOM}")
        elif conversation.turns and conversation.turns[-1].is_open:
            go_on = QueuedTurn(run=lambda chat, here: chat.continue_answer(here), name="continue")
            self._screen.queue(go_on)
        else:
            self._screen.warn("the last answer is complete; there is nothing to continue")

    def edit(self, argument: str) -> None:
        question = self._question("edit", argument)
        if question is not None:
            self._screen.revisions.begin_edit(question)

    def undo(self, argument: str) -> None:
        if self._question("undo", argument) is not None:
            self._screen.revisions.undo(int(argument or "1"))

    def drop(self, argument: str) -> None:
        question = self._question("drop", argument)
        if question is not None:
            self._screen.revisions.drop(question)

    def system(self, text: str) -> None:
        conversation = self._turns.conversation
        if text:
            if conversation is not None:
                self._screen.tell("a system prompt stands before everything else: this is a new conversation")
            self._screen.conversations.open_draft(Draft(system=text))
            return
        current = conversation.session.system if conversation else self._turns.tab.draft.system
        self._screen.tell(one_line(current) or "there is no system prompt", title="system prompt")

    def cache(self, argument: str) -> None:
        name, _, rest = argument.partition(" ")
        if name == "format":
            if (conversation := self._stored()) is not None:
                self._screen.formats.choose(conversation, rest.strip())
            return
        actions = {
            "": self._screen.panes.toggle_cache,
            "layers": self._screen.panel.toggle_expanded,
            "blocks": self._screen.show_blocks,
            "freeze": self._screen.panel.toggle_frozen,
        }
        if argument in actions:
            actions[argument]()
        else:
            known = "/cache, /cache layers, /cache blocks, /cache freeze or /cache format NAME"
            self._screen.warn(f"{known}, not /cache {argument}")

    def gauge(self, cache_format: str) -> None:
        conversation = self._stored()
        if conversation is not None:
            measure = partial(self._screen.formats.gauge, conversation, cache_format)
            self._screen.begin(measure, group="gauge")

    def export(self, target: str) -> None:
        conversation = self._stored()
        if conversation is not None:
            session, branch = conversation.session.id, conversation.branch.name
            self._screen.begin(partial(self._screen.sessions.export, session, branch, target))

    def screen(self, target: str = "") -> None:
        """Write what the screen shows to a file, once the command no longer stands there."""
        app, write = self._screen.app, self._screen.sessions.write
        app.call_after_refresh(
            lambda: self._screen.begin(partial(write, partial(write_screen, app.export_screenshot(), target)))
        )

    def why(self, argument: str) -> None:
        answer = self._answer("explain", argument)
        if answer is not None:
            self._explain(answer)

    def _explain(self, answer: Turn) -> None:
        conversation = self._stored()
        if conversation is not None:
            self._screen.begin(partial(self._why, conversation, answer))

    async def _why(self, conversation: "Conversation", answer: Turn) -> None:
        explanation = await asyncio.to_thread(self._chat.why, conversation, answer.id)
        num_computed = explanation.miss.computed_tokens
        title = f"Why {plural(num_computed, 'token')} {'was' if num_computed == 1 else 'were'} computed"
        await self._screen.dialogs.note(title, why_words(explanation))

    def rename(self, title: str) -> None:
        conversation = self._turns.conversation
        if conversation is None:
            self._turns.tab.draft = replace(self._turns.tab.draft, title=title)
            self._screen.conversation_changed()
            return
        self._screen.begin(partial(self._screen.sessions.rename, conversation.session.id, title))

    def _answer(self, purpose: str, argument: str) -> Turn | None:
        return self._nth_last(Role.ASSISTANT, purpose, argument)

    def _question(self, purpose: str, argument: str) -> Turn | None:
        """Return the person's n-th last message where it can be changed now; say why not otherwise."""
        if self._stored() is None or not self._is_free(purpose):
            return None
        return self._nth_last(Role.USER, purpose, argument)

    def _nth_last(self, role: Role, purpose: str, argument: str) -> Turn | None:
        """Return the n-th last message of somebody; say where there is none."""
        conversation = self._stored()
        if conversation is None:
            return None
        turns = [turn for turn in conversation.turns if turn.role is role]
        num = int(argument or "1") if (argument or "1").isdecimal() else 0
        if 1 <= num <= len(turns):
            return turns[-num]
        what = "answer" if role is Role.ASSISTANT else "message"
        self._screen.warn(f"there is no {what} {argument or 1} from the end to {purpose}")
        return None

    def _is_free(self, purpose: str) -> bool:
        if self._turns.is_running:
            self._screen.warn(f"an answer is being written: esc stops it, then {purpose}")
        return not self._turns.is_running

    def _stored(self) -> "Conversation | None":
        if self._turns.conversation is None:
            self._screen.warn("nothing has been said here yet")
        return self._turns.conversation

    async def _opened(self, reference: str) -> "Conversation":
        """Return a branch of the open session, or a session, by what the person calls it."""
        conversation = self._turns.conversation
        if conversation is not None:
            session_id = conversation.session.id
            branches = await asyncio.to_thread(self._chat.store.branches, session_id)
            if any(branch.name == reference for branch in branches):
                return await asyncio.to_thread(self._chat.open, session_id, reference)
        titles = self._screen.sessions.sessions.titles
        shown = (session_id for session_id, title in titles.items() if title == reference)
        return await asyncio.to_thread(self._chat.open, next(shown, reference))
