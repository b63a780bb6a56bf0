"""The chat screen: sessions, conversation, cache panel, prompt, status, and what a person does there."""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any, ClassVar

from textual import events, work
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.content import Content
from textual.screen import Screen
from textual.widget import Widget
from textual.widgets import Input, Static

from kvchat.engine.api.engine_phase import EnginePhase, EngineStatus
from kvchat.engine.api.snapshot import CacheSnapshot
from kvchat.errors import KvchatError
from kvchat.session.tree import Turn
from kvchat.text.attached_files import shown_message, words_of
from kvchat.text.fit_text import one_line
from kvchat.ui.commands import SlashCommand
from kvchat.ui.controllers.clipboard import Clipboard
from kvchat.ui.controllers.command_dispatcher import CommandDispatcher
from kvchat.ui.controllers.composer import ComposerController
from kvchat.ui.controllers.conversations import ConversationController
from kvchat.ui.controllers.dialogs import Dialogs, Work
from kvchat.ui.controllers.drafts import DraftController
from kvchat.ui.controllers.engine_watch import EngineWatch
from kvchat.ui.controllers.formats import FormatController
from kvchat.ui.controllers.message_actions import MessageActionsController
from kvchat.ui.controllers.revisions import RevisionController
from kvchat.ui.controllers.sending import SendController
from kvchat.ui.controllers.sessions import SessionController
from kvchat.ui.controllers.settings import SettingsController
from kvchat.ui.controllers.turn_runner import TurnRunner
from kvchat.ui.key_names import WINDOW_KEYS, Hint, hints_of, key_name, leave_keys, window_hints
from kvchat.ui.screens.notices import Notices
from kvchat.ui.state.conversation_tab import QueuedTurn
from kvchat.ui.terminal.render_loop import INTERVAL_S, RenderLoop
from kvchat.ui.widgets.cache.compact_line import CacheLine
from kvchat.ui.widgets.cache.panel import CachePanel
from kvchat.ui.widgets.cache.panel_rows import BranchNames
from kvchat.ui.widgets.composer import Composer
from kvchat.ui.widgets.heading import editing_text, heading_text, model_parts
from kvchat.ui.widgets.list_search_field import FindField
from kvchat.ui.widgets.panes import Panes
from kvchat.ui.widgets.prompt_input import Prompt
from kvchat.ui.widgets.session_list import SessionList
from kvchat.ui.widgets.status_bar import StatusBar
from kvchat.ui.widgets.transcript import Transcript
from kvchat.ui.widgets.welcome import Welcome

if TYPE_CHECKING:
    from kvchat.app.interface_host import InterfaceHost
    from kvchat.chat.conversation import Conversation
    from kvchat.chat.engine_client import EngineClient
    from kvchat.chat.service import Chat

_QUIET_S = 2.0
_TYPING_S = 0.7
"""So soon after a key the next one is expected: what can wait is not drawn."""
_TEMPORARY = "temporary conversation"


class ChatScreen(Screen[None]):
    """Composes the widgets, hands keys and text to the controllers, and shows what they report.

    Args:
        initial: the session to open; None begins a new conversation.

    Attributes:
        own_keys: the person's other keys, by the ids of what they do.
        prompt, transcript, panes, listed, panel, turns and the controllers: once the screen is mounted.
    """

    BINDINGS: ClassVar[list[BindingType]] = [*WINDOW_KEYS]

    AUTO_FOCUS = "#prompt"

    prompt: Prompt
    transcript: Transcript
    panes: Panes
    listed: SessionList
    panel: CachePanel
    turns: TurnRunner

    def __init__(
        self, chat: "Chat", engine: "EngineClient", host: "InterfaceHost", initial: str | None
    ) -> None:
        super().__init__()
        self.chat = chat
        self.engine = engine
        self.host = host
        self._initial = initial
        self.own_keys: Mapping[str, str] = host.appearance().keys
        self.dialogs = Dialogs(self)
        self.notices = Notices(self, self.dialogs)
        self._place: object = None
        self._queued_s = 0.0
        self._has_been_seen = False

    def compose(self) -> ComposeResult:
        yield Panes(id="body")
        yield Composer(id="composer")
        yield CacheLine()
        yield StatusBar(id="status")

    def on_mount(self) -> None:
        self.prompt = self.query_one("#prompt", Prompt)
        self.transcript = self.query_one("#transcript", Transcript)
        self.panes, self.listed = self.query_one(Panes), self.query_one(SessionList)
        self.panel = self.query_one(CachePanel)
        self.prompt.use_keys(self.own_keys)
        for widget in (self.prompt, self.transcript, *self.query("FindField, SessionList").results(Widget)):
            leave_keys(widget, self.own_keys)
        self.turns = turns = TurnRunner(self, self.transcript, system=self.host.appearance().system)
        self.composer = composer = ComposerController(self)
        self.revisions = revisions = RevisionController(self, composer)
        self.sending = SendController(self, composer, revisions)
        self.drafts = DraftController(self, composer, revisions)
        self.conversations = ConversationController(self, composer, revisions, self.drafts)
        line, status = self.query_one(CacheLine), self.query_one(StatusBar)
        self._watch = watch = EngineWatch(self, line, status, self._phase_changed)
        self.sessions = SessionController(self, self.conversations, watch, self._initial)
        self.branching = MessageActionsController(self, composer, self.conversations)
        self.clipboard = Clipboard(self)
        self.settings = SettingsController(self, self.conversations)
        self.formats = FormatController(self, self.settings)
        self.commands = CommandDispatcher(self)
        self.begin(self.composer.read_history)
        self.prompt.focus()
        self._render_loop = RenderLoop(self, turns.drain)
        self.set_timer(INTERVAL_S, self._look)
        self.conversation_changed()
        if self._initial is not None:
            self.conversations.open_with(partial(asyncio.to_thread, self.chat.open, self._initial))
        else:
            self.begin(partial(self.drafts.give_back, None))

    def on_unmount(self) -> None:
        if (turns := getattr(self, "turns", None)) is not None:
            turns.garbage.release()

    def quit(self, return_code: int = 0) -> None:
        """Stop what runs, keep it and what was not sent, and leave."""
        if self.drafts.leaves(is_asked=return_code == 0):
            self.conversations.throw_all_away()
            self.turns.garbage.release()
            self.app.exit(return_code=return_code)

    # Notices and work

    def tell(self, message: str, *, title: str = "") -> None:
        self.notices.toast("information", message, title, 6)

    def warn(self, message: str) -> None:
        self.notices.toast("warning", message, "", 8)

    def fail(self, message: str, *, title: str = "") -> None:
        self.notices.toast("error", message, title, 15)

    def begin(self, work: Work, *, group: str = "", asked_s: float | None = None) -> None:
        asked_s = self.dialogs.asked_s if asked_s is None else asked_s
        running = partial(self._run, work, asked_s)
        self.run_worker(running, group=group or "work", exclusive=bool(group))  # type: ignore[arg-type]

    async def _run(self, work: Work, asked_s: float) -> None:
        try:
            await self.dialogs.run(work, asked_s)
        except KvchatError as error:
            self.warn(str(error))

    # The prompt

    def on_prompt_submitted(self, event: Prompt.Submitted) -> None:
        if not self.conversations.hold(event):
            self.submit(event)

    def submit(self, event: Prompt.Submitted) -> None:
        if event.is_command:
            run = partial(self.commands.run, event.text)
        else:
            run = partial(self.sending.send, event.text, event.pasted, event.stored)
        self.dialogs.at_key(event.pressed_s, run)

    def on_prompt_attached(self, event: Prompt.Attached) -> None:
        self.composer.attach(event.path)

    def on_prompt_pasted_much(self, event: Prompt.PastedMuch) -> None:
        self.composer.attach_text(event.text)

    def on_prompt_pasted_binary(self) -> None:
        self.warn("nothing was pasted: that is no text")

    def on_prompt_erased_nothing(self) -> None:
        self.composer.detach()

    def on_prompt_completing(self, event: Prompt.Completing) -> None:
        self.query_one(Composer).show_commands(event.candidates, event.chosen)
        self.settings.preview_theme(event.line, event.candidates[event.chosen] if event.candidates else None)

    def on_prompt_interrupted(self) -> None:
        self.interrupt()

    def on_text_area_changed(self) -> None:
        self.panes.show_conversation()
        self.revisions.text_changed(self.prompt.text)

    def queue(self, pending: QueuedTurn) -> None:
        if self._watch.status.phase is EnginePhase.FAILED:
            self.warn("the engine has stopped: this waits until /reload has loaded it again")
        self._queued_s = self.dialogs.asked_s
        self.conversations.goes_on = True
        self.turns.add(pending)
        self._start_next()

    def run_command(self, command: SlashCommand) -> None:
        """Run what was chosen by name: for the line of the list where the person is there and it can be meant
        for one, else for the conversation on screen, once its argument is written.
        """
        if self.listed.has_focus and self.listed.chosen is not None and command.is_for_lines:
            self.listed.action_ask(command.name)
        elif command.needs_argument:
            self.prompt.restore_command(f"/{command.name} ")
        else:
            self.commands.run(f"/{command.name}")

    def run_on(self, turn: Turn, name: str) -> None:
        self.commands.run_on(turn, name)

    # Keys

    def action_run(self, command: str) -> None:
        self.commands.run(f"/{command}")

    def action_sessions(self) -> None:
        if self.panes.hide_sessions():
            self.prompt.focus()
        else:
            self.show_sessions_pane()

    async def action_page(self, direction: int) -> None:
        """Scroll the conversation by a page; near the top, earlier messages are mounted first."""
        if direction < 0:
            await self.transcript.page_up()
        else:
            self.transcript.scroll_page_down()

    def show_blocks(self) -> None:
        from kvchat.ui.screens.inspector import InspectorScreen

        self.begin(partial(self.dialogs.ask, InspectorScreen(self, self._watch, self._branch_names)))

    def action_editor(self) -> None:
        self.clipboard.edit_prompt(self.prompt.text)

    def action_reasoning(self) -> None:
        self.transcript.fold_reasoning()

    async def action_messages(self) -> None:
        """Walk through the messages; pressed again, choose what to do with the one walked to."""
        if self.transcript.selected is not None:
            self.transcript.action_choose()
        else:
            self.transcript.focus()
            await self.transcript.action_select(0)
            self.draw_hints()

    def on_transcript_chosen(self, event: Transcript.Chosen) -> None:
        if self.transcript.selected is None:
            return  # enter was pressed twice before the first one counted
        self.transcript.unselect()
        self.prompt.focus()
        self.begin(partial(self.branching.choose, event.turn))

    def on_static_text_link_clicked(self, event: Any) -> None:
        self.app.copy_to_clipboard(event.href)
        self.tell(event.href, title="link copied")

    def action_stop(self) -> None:
        """Go back to the prompt from where the person has gone; from there, stop what there is to stop."""
        is_finding = isinstance(self.focused, FindField) and not self.turns.is_busy
        if is_finding or isinstance(self.focused, SessionList):
            self.action_leave_sessions()
        elif self.transcript.selected is not None:
            self.prompt.focus()
        elif self.prompt.is_completing:
            self.prompt.stop_completing()
        else:
            self._stop()

    def stop_answer(self) -> None:
        if self.turns.is_busy:
            self._stop()
        else:
            self.warn("no answer is being written")

    def interrupt(self) -> None:
        """Take ctrl+c: stop the answer, or say how to leave."""
        if self.turns.is_busy:
            self._stop()
        else:
            self.tell(f"{key_name(self.own_keys, 'quit')} or /quit leaves; everything is kept")

    def _stop(self) -> None:
        if self.turns.is_busy:
            self.composer.give_back(self.turns.stop())
        elif self.revisions.editing is not None:
            self.prompt.keep_draft(words_of(self.revisions.editing.text))
            self.revisions.end_edit()
            self.prompt.set_text("")
        elif self.conversations.asides.shown is not None and self.prompt.has_focus:
            if self.turns.excuse_stop(self.dialogs.typed_s):
                self.tell("the answer had ended already; esc again goes back, and throws the aside away")
            else:
                self.conversations.asides.end()
        else:
            self.prompt.focus()

    # The list of sessions

    def show_sessions_pane(self) -> None:
        self.panes.show_sessions()
        self.sessions.refresh()  # another window may have changed them

    def on_input_changed(self, event: Input.Changed) -> None:
        self.sessions.find(event.value.strip())

    def on_session_list_opened(self, event: SessionList.Opened) -> None:
        self.action_leave_sessions()
        if event.turn_id is not None:  # on a new branch where none leads there any more
            opener = partial(self.chat.open_at, event.turn_id)
        else:
            opener = partial(self.chat.open, event.session_id, event.branch)
        self.conversations.open_with(partial(asyncio.to_thread, opener))

    @work(exclusive=True, group="prefetch")
    async def on_session_list_selected(self, event: SessionList.Selected) -> None:
        """Load ahead of use what may be opened next, but not under a dialog, which may delete it."""
        if self.is_active:
            here = self.turns.conversation
            with suppress(KvchatError):  # it shows when that is opened
                await asyncio.to_thread(self.chat.prefetch, event.session_id, event.branch, here)

    def on_session_list_asked(self, event: SessionList.Asked) -> None:
        self.commands.run_on_line(event.command, event.session_id, event.branch)

    def action_leave_sessions(self) -> None:
        self.panes.leave_sessions()
        self.prompt.focus()

    # What turns report

    def queue_changed(self) -> None:
        # Later: what starts at once was never seen to wait, and would have everything laid out for nothing.
        self.call_later(self._draw_queue)

    def turn_produced(self) -> None:
        self._render_loop.wake()

    def conversation_changed(self) -> None:
        self.draw_heading()
        self.sessions.refresh()

    def turn_failed(self, error: Exception, unsent: str) -> None:
        self.fail(str(error) or type(error).__name__)
        self.composer.give_back(unsent)

    def outgrown(self, fits_in: tuple[str, ...]) -> None:
        self.formats.offer(fits_in, self._queued_s)

    def warn_behind(self, conversation: "Conversation | None", message: str) -> None:
        title = "" if conversation is None else self.sessions.title(conversation.session.id)
        self.notices.toast("warning", message, title, 15)

    def ended_behind(self, conversation: "Conversation") -> None:
        if self.conversations.is_thrown_away(conversation):
            self.begin(partial(self.conversations.end_behind, conversation))
        else:
            self.tell("the answer has ended", title=self.sessions.title(conversation.session.id))
            self.conversations.keep_behind(conversation)

    def turn_ended(self) -> None:
        if not self.turns.is_any_running:
            self._render_loop.stop()
        if (answer := self.transcript.last_answer) is not None:
            self._watch.last_rate = answer.turn.timings.decode_tokens_per_s
        self.conversation_changed()
        self._start_next()

    # Drawing

    def on_resize(self, event: events.Resize) -> None:
        self.query_one(Panes).fit(event.size.width)

    def on_screen_resume(self, event: events.ScreenResume) -> None:
        """Come on screen. The first time every widget has just been given its styles."""
        event.refresh_styles = event.refresh_styles and self._has_been_seen
        self._has_been_seen = True

    @property
    def is_engine_ready(self) -> bool:
        return self._watch.is_ready

    @property
    def snapshot(self) -> CacheSnapshot | None:
        return self._watch.snapshot

    def show_theme(self, name: str) -> None:
        self.app.show_theme(name)  # type: ignore[attr-defined]

    def draw_lines(self, place: str, lines: Sequence[str]) -> None:
        for composer in self.query(Composer):  # none while the window is being closed
            composer.draw_lines(place, lines)

    def on_descendant_focus(self) -> None:
        self.draw_hints()

    def draw_hints(self) -> None:
        """Name the keys of what has the focus; in the prompt, those of the window."""
        for status in self.query(StatusBar):
            status.show_hints(self._hints())

    def _hints(self) -> Sequence[Hint]:
        focused, is_walking = self.focused, self.transcript.selected is not None
        if isinstance(focused, SessionList | FindField) or (is_walking and focused is self.transcript):
            return hints_of(focused)
        if self._watch.status.phase is EnginePhase.FAILED:
            return (Hint("/reload loads it again"),)
        is_editing = self.revisions.editing is not None
        is_covered = not self.panes.has_conversation
        is_busy = self.turns.is_busy
        return window_hints(self.own_keys, is_busy=is_busy, is_editing=is_editing, is_covered=is_covered)

    def _draw_queue(self) -> None:
        waiting = [one_line(shown_message(one.text)) or one.name for one in self.turns.tab.queue]
        asked = [f"changed {one_line(shown_message(text))}" for text in self.revisions.asked]
        self.draw_lines("queue", [*asked, *(f"queued  {line}" for line in waiting)])

    def _start_next(self) -> None:
        if self._watch.is_ready and self.turns.start_next():
            self._render_loop.start()
        self.draw_hints()

    def _look(self) -> None:
        """Draw the engine's state, and come back: often while an answer is written."""
        until_next_s = self._watch.look(self._branch_names())
        self.set_timer(until_next_s, self._look)
        if monotonic() - self.dialogs.typed_s > _TYPING_S:
            self.sessions.keep_fresh()
        # Full collections wait until no key was pressed for a while and nothing has scrolled.
        place = self.transcript.scroll_offset, self.transcript.num_hidden
        is_still, self._place = place == self._place, place
        is_quiet = is_still and monotonic() - self.dialogs.typed_s > _QUIET_S
        self.turns.garbage.look(is_quiet=is_quiet and not self.turns.is_any_running)
        self.conversations.look(self._watch.snapshot)
        self.notices.look(self._watch.snapshot)

    def _branch_names(self) -> BranchNames:
        return self.sessions.sessions.branch_names(self.turns.conversation, self.conversations.opened)

    def _phase_changed(self, status: EngineStatus) -> None:
        self.draw_heading()
        if status.phase is EnginePhase.READY:
            self.turns.garbage.settle()
            self.turns.forget_outgrown()
            self.transcript.show_endings()
            self.composer.read_again()
            is_answering = self.turns.is_busy
            self._start_next()
            self.conversations.engine_loaded(is_answering)
        elif status.phase is EnginePhase.FAILED:
            reason = status.error or status.detail or "the engine stopped"
            self.fail(f"{reason}\n/reload loads it again; what was said is kept", title="engine")
            self.composer.give_back(self.turns.stop_all())

    def draw_heading(self) -> None:
        for heading in self.query("#heading").results(Static):  # none while the window is being closed
            editing, conversation = self.revisions.editing, self.turns.conversation
            width, stop = heading.content_size.width, key_name(self.own_keys, "stop")
            if editing is not None:
                text = editing_text(self.revisions.number, self.revisions.costs, width, stop)
            else:
                stored = self.sessions.sessions.titles.get(conversation.session.id) if conversation else None
                temporary = _TEMPORARY if self.conversations.temporary.is_shown else ""
                title, note = stored or self.turns.tab.draft.title or temporary, self.conversations.note(stop)
                text = heading_text(conversation, title, width, note, model_parts(self.snapshot))
            heading.update(Content(text), layout=False)
            heading.set_class(editing is not None, "-editing")
            self.transcript.mark_edited(editing.id if editing is not None else None)
            self._draw_welcome()
            self.draw_hints()

    def _draw_welcome(self) -> None:
        model = self.chat.model if self._watch.is_ready else None  # while it loads it may not be made
        self.query_one(Welcome).show(self._watch.status.phase, model, len(self.sessions.sessions.entries))
