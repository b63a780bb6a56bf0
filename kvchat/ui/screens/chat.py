"""The one screen: sessions, conversation, cache panel, prompt, status, and what a person does there."""

import asyncio
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, ClassVar

from textual import work
from textual.binding import Binding, BindingType
from textual.widget import Widget

from kvchat.app.host import EngineView
from kvchat.errors import KvchatError
from kvchat.text.attachments import words_of
from kvchat.ui.commands import SlashCommand
from kvchat.ui.controllers.attaching import AttachmentController
from kvchat.ui.controllers.branching import BranchController
from kvchat.ui.controllers.clipboard import Clipboard
from kvchat.ui.controllers.command_dispatcher import CommandDispatcher, Helpers
from kvchat.ui.controllers.drafts import DraftController
from kvchat.ui.controllers.engine_watch import EngineWatch
from kvchat.ui.controllers.formats import FormatController, GaugeController
from kvchat.ui.controllers.inspecting import InspectorController
from kvchat.ui.controllers.revisions import RevisionController
from kvchat.ui.controllers.sending import SendController
from kvchat.ui.controllers.sessions import SessionController
from kvchat.ui.controllers.settings import SettingsController
from kvchat.ui.controllers.temporary import TemporaryController
from kvchat.ui.controllers.turn_runner import TurnRunner
from kvchat.ui.key_names import key_name, leave_keys
from kvchat.ui.screens.conversation import ConversationScreen
from kvchat.ui.terminal.render_loop import INTERVAL_S, RenderLoop
from kvchat.ui.widgets.cache.panel import CachePanel
from kvchat.ui.widgets.prompt import Prompt
from kvchat.ui.widgets.session_list import SessionList
from kvchat.ui.widgets.sessions_pane import SessionsPane
from kvchat.ui.widgets.status_bar import StatusBar
from kvchat.ui.widgets.transcript import Transcript

if TYPE_CHECKING:
    from kvchat.app.interface_host import InterfaceHost
    from kvchat.chat.service import Chat


class ChatScreen(ConversationScreen):
    """The chat screen: composes the widgets and hands keys and text to the controllers."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("f5", "continue", "Continue", id="go_on", show=False),
        Binding("f6", "messages", "Messages", id="messages", priority=True),
        Binding("ctrl+g", "editor", "Editor", id="editor", show=False),
        Binding("ctrl+r", "history", "History", id="history", show=False),
        Binding("ctrl+n", "new", "New", id="new"),
        Binding("ctrl+t", "reasoning", "Reasoning", id="reasoning", show=False),
        Binding("escape", "stop", "Stop", id="stop", show=False),
        Binding("enter", "to_prompt", "Send", id="send", show=False),
        Binding("ctrl+j,shift+enter,alt+enter", "to_prompt", "New line", id="newline", show=False),
    ]

    def __init__(self, chat: "Chat", engine: EngineView, host: "InterfaceHost", initial: str | None) -> None:
        super().__init__(chat, engine, host)
        self._initial = initial

    def on_mount(self) -> None:
        self.prompt = self.query_one("#prompt", Prompt)
        self.transcript = self.query_one("#transcript", Transcript)
        self.prompt.use_keys(self.own_keys)
        for widget in (self.prompt, self.transcript, *self.query("FindField, SessionList").results(Widget)):
            leave_keys(widget, self.own_keys)
        self.turns = TurnRunner(self._chat, self.transcript, self, system=self._host.appearance().system)
        self.courses = RevisionController(self, self._chat, self.turns)
        self.shelf = SessionController(self, self._chat.store, self._host, self.turns)
        self.branching = BranchController(self, self._chat, self.turns)
        self.temporary = TemporaryController(self, self._chat, self.turns)
        self.outlet = Clipboard(self)
        self.attaching = AttachmentController(self, self._chat, self.turns)
        self.sending = SendController(self, self.turns, self.attaching, self.courses)
        self.keeping = DraftController(self, self._chat.store, self.turns, self.courses, self.attaching)
        housekeeping = SettingsController(self, self._chat, self._host, self.turns)
        self.formats = FormatController(self, self._host, self.turns, housekeeping)
        helpers = Helpers(
            courses=self.courses,
            shelf=self.shelf,
            branching=self.branching,
            outlet=self.outlet,
            attaching=self.attaching,
            housekeeping=housekeeping,
            gauging=GaugeController(self, self._host, self.turns),
            formats=self.formats,
            temporary=self.temporary,
        )
        self.verbs = CommandDispatcher(self, self._chat, self.turns, helpers)
        self._inspecting = InspectorController(self, self._chat, self.engine, self.turns, self._branch_names)
        self._watch = EngineWatch(
            self.engine, self.query_one(CachePanel), self.query_one(StatusBar), self._phase_changed
        )
        self.draw_lines("#offers", ())
        self.draw_lines("#queue", ())
        self.draw_lines("#attachments", ())
        self.begin(self._read_history)
        self.prompt.focus()
        self._drain = RenderLoop(self, self.turns)
        self.set_timer(INTERVAL_S, self._look)
        self.conversation_changed()
        if self._initial is not None:
            reference = self._initial
            self.open_with(lambda: asyncio.to_thread(self._chat.open, reference))
        else:
            self.begin(partial(self.keeping.give_back, None))

    # What others ask of the screen

    def show_sessions_pane(self) -> None:
        super().show_sessions_pane()
        self.shelf.refresh()  # another window may have changed them

    def show_theme(self, name: str) -> None:
        self.app.show_theme(name)  # type: ignore[attr-defined]

    def quit(self, return_code: int = 0) -> None:
        """Stop what runs, keep it and what was not sent, and leave."""
        if self.keeping.leaves(is_wish=return_code == 0):
            self.branching.throw_all_away()
            self.temporary.delete_all()
            self.turns.release()
            self.app.exit(return_code=return_code)

    # What the person does

    def on_prompt_attached(self, event: Prompt.Attached) -> None:
        self.attaching.attach(event.path)

    def on_prompt_pasted_much(self, event: Prompt.PastedMuch) -> None:
        self.attaching.attach_text(event.text)

    def on_prompt_pasted_binary(self) -> None:
        self.warn("nothing was pasted: that is no text")

    def on_prompt_erased_nothing(self) -> None:
        self.attaching.detach()

    async def _read_history(self) -> None:
        with suppress(KvchatError):
            messages = await asyncio.to_thread(self._chat.store.recent_questions)
            self.prompt.begin_history([words_of(message) for message in messages])

    async def _find_message(self) -> None:
        from kvchat.ui.screens.history import HistoryScreen

        message = await self.ask(HistoryScreen(self.prompt.messages))
        if message is not None:
            self.write_prompt(message)
            self.prompt.note_found(message)

    def action_history(self) -> None:
        self.begin(self._find_message)

    def on_text_area_changed(self) -> None:
        self.courses.text_changed(self.prompt.text)

    def on_prompt_interrupted(self) -> None:
        self.interrupt()

    def on_session_list_opened(self, event: SessionList.Opened) -> None:
        self._leave_sessions()
        if event.turn_id is not None:
            self.open_with(self.verbs.opener_at(event.turn_id))
        else:
            self.open_with(lambda: asyncio.to_thread(self._chat.open, event.session_id, event.branch))

    def on_sessions_pane_searched(self, event: SessionsPane.Searched) -> None:
        self.shelf.find(event.words)

    def on_sessions_pane_closed(self) -> None:
        self._leave_sessions()

    @work(exclusive=True, group="prefetch")
    async def on_session_list_selected(self, event: SessionList.Selected) -> None:
        """Load ahead of use what may be opened next; whatever goes wrong shows when it is opened."""
        with suppress(KvchatError):
            await asyncio.to_thread(
                self._chat.prefetch, event.session_id, event.branch, self.turns.conversation
            )

    def on_session_list_asked(self, event: SessionList.Asked) -> None:
        self.verbs.run_on_line(event.command, event.session_id, event.branch)

    def run_command(self, command: SlashCommand) -> None:
        """Run what was chosen by name: for the line of the list where the person is there and it can be meant
        for one, else for the conversation on screen, once its argument is written.
        """
        listed = self.query_one(SessionList)
        if listed.has_focus and listed.chosen is not None and command.is_for_lines:
            listed.action_ask(command.name)
        elif command.needs_argument:
            self.restore_command(f"/{command.name} ")
        else:
            self.verbs.run(f"/{command.name}")

    def action_inspect(self) -> None:
        self._inspecting.open()

    def action_new(self) -> None:
        self.verbs.new()

    def action_continue(self) -> None:
        self.verbs.go_on()

    async def action_messages(self) -> None:
        """Walk through the messages; pressed again, choose what to do with the one walked to."""
        if self.transcript.selected is not None:
            self.transcript.action_choose()
        else:
            self.transcript.focus()
            await self.transcript.action_select(0)

    def action_editor(self) -> None:
        self.outlet.edit_prompt(self.prompt.text)

    def on_transcript_chosen(self, event: Transcript.Chosen) -> None:
        if self.transcript.selected is None:
            return  # enter was pressed twice before the first one counted
        self.transcript.unselect()
        self.prompt.focus()
        self.branching.choose(event.turn)

    def action_reasoning(self) -> None:
        self.transcript.fold_reasoning()

    def action_stop(self) -> None:
        """Go back to the prompt from where the person has gone; from there, stop what there is to stop."""
        if self.query_one(SessionList).has_focus:
            self._leave_sessions()
        elif self.transcript.selected is not None:
            self.prompt.focus()
        elif self.prompt.is_completing:
            self.prompt.stop_completing()
        else:
            self._stop()

    def action_to_prompt(self) -> None:
        self.prompt.focus()

    def stop_answer(self) -> None:
        """Stop the answer and what waits behind it, and nothing else."""
        if self.turns.is_busy:
            self._stop()
        else:
            self.warn("no answer is being written")

    def _stop(self) -> None:
        if self.turns.is_busy:
            self.give_back(self.turns.stop())
        elif self.courses.editing is not None:
            self.prompt.keep_draft(words_of(self.courses.editing.text))
            self.courses.end_edit()
            self.prompt.set_text("")
        elif self.branching.aside is not None and self.prompt.has_focus:
            if self.turns.excuse_stop(self.typed_s):
                self.tell("the answer had ended already; esc again goes back, and throws the aside away")
            else:
                self.branching.end_aside()
        else:
            self.prompt.focus()

    def interrupt(self) -> None:
        """Take ctrl+c: stop the answer, or say how to leave."""
        if self.turns.is_busy:
            self._stop()
        else:
            self.tell(f"{key_name(self.own_keys, 'quit')} or /quit leaves; everything is kept")
