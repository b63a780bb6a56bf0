"""The conversation on the screen: what has been said, what waits, what the engine does with it."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING

from textual import events, work
from textual.content import Content
from textual.widgets import Static

from kvchat.app.host import EngineView
from kvchat.engine.api.snapshot import CacheSnapshot
from kvchat.engine.api.status import EnginePhase, EngineStatus
from kvchat.errors import KvchatError
from kvchat.session.tree import SessionId, Turn
from kvchat.text.attachments import before_message, shown_message, split_message, take_out_files
from kvchat.text.plain_text import one_line
from kvchat.ui.controllers.attaching import AttachmentController
from kvchat.ui.controllers.branching import BranchController
from kvchat.ui.controllers.command_dispatcher import CommandDispatcher, Opener
from kvchat.ui.controllers.drafts import DraftController
from kvchat.ui.controllers.engine_watch import EngineWatch, Shown
from kvchat.ui.controllers.formats import FormatController
from kvchat.ui.controllers.revisions import RevisionController
from kvchat.ui.controllers.sending import SendController
from kvchat.ui.controllers.sessions import SessionController
from kvchat.ui.controllers.temporary import TemporaryController
from kvchat.ui.controllers.turn_runner import PendingTurn, TurnRunner
from kvchat.ui.key_names import key_name
from kvchat.ui.screens.window import WindowScreen
from kvchat.ui.state.conversation_tab import Draft
from kvchat.ui.state.open_conversations import OpenConversations
from kvchat.ui.state.scroll_position import ScrollPosition
from kvchat.ui.terminal.render_loop import RenderLoop
from kvchat.ui.widgets.cache.panel_rows import BranchNames
from kvchat.ui.widgets.heading import editing_text, heading_text, welcome_text
from kvchat.ui.widgets.prompt import Prompt
from kvchat.ui.widgets.session_list import SessionList
from kvchat.ui.widgets.session_rows import Held, SessionListOptions, SessionWithBranches

if TYPE_CHECKING:
    from kvchat.app.interface_host import InterfaceHost
    from kvchat.chat.conversation import Conversation
    from kvchat.chat.service import Chat

_QUIET_S = 2.0
_TYPING_S = 0.7
"""So soon after a key the next one is expected: what can wait is not drawn."""
_AT_REST_S = 0.3
"""What is good to know before the next message is told when a conversation has stood for this long."""
_TEMPORARY = "temporary conversation"
_TEMPORARY_NOTE = "  ·  deleted when you leave"
_ASIDE_NOTE = "  ·  thrown away when you leave · {} goes back"


class ConversationScreen(WindowScreen):
    """Shows how a conversation goes on, and does what turns, commands and the engine ask of the screen.

    Attributes:
        turns, courses, shelf, branching, temporary, attaching, keeping, sending, verbs, formats: once it is
            mounted.
    """

    turns: TurnRunner
    courses: RevisionController
    shelf: SessionController
    branching: BranchController
    temporary: TemporaryController
    attaching: AttachmentController
    keeping: DraftController
    sending: SendController
    verbs: CommandDispatcher
    formats: FormatController
    _watch: EngineWatch
    _drain: RenderLoop

    def __init__(self, chat: "Chat", engine: EngineView, host: "InterfaceHost") -> None:
        super().__init__(host.appearance().keys)
        self._chat = chat
        self._host = host
        self.engine = engine
        self._last_rate: float | None = None
        self._kept = OpenConversations()
        self._reach = ScrollPosition(chat, engine)
        self._place: object = None
        self._queued_s = 0.0
        self._is_opening = False
        self._goes_on = False
        """Whether anything was sent since a conversation has come on screen, or an engine for it."""
        self._entered: list[Prompt.Submitted] = []

    def on_unmount(self) -> None:
        if (turns := getattr(self, "turns", None)) is not None:
            turns.release()

    # What others ask of the screen

    def queue(self, pending: PendingTurn) -> None:
        """Run a turn as soon as the engine is loaded and no other runs."""
        if self._watch.status.phase is EnginePhase.FAILED:
            self.warn("the engine has stopped: this waits until /reload has loaded it again")
        self._queued_s = self.asked_s
        self._goes_on = True
        self.turns.add(pending)
        self._start_next()

    def restore_command(self, line: str) -> None:
        """Put a command line that could not be run back into the prompt."""
        self.prompt.keep_draft(line)
        self.prompt.set_text(line)
        self.prompt.mark_typed_slash()

    @property
    def is_engine_ready(self) -> bool:
        return self._watch.is_ready

    @property
    def snapshot(self) -> CacheSnapshot | None:
        return self._watch.snapshot

    def write_prompt(self, text: str) -> None:
        """Put a text into the prompt, for the person to go on with; what stood there is a key up away."""
        self.prompt.keep_draft(text)
        self.prompt.set_text(text)
        self.prompt.focus()

    def give_back(self, text: str) -> None:
        """Return unsent text to the prompt, before what has been typed since, and its files to its lines."""
        files, text = take_out_files(text)
        self.attaching.give_back(files)
        if text:
            self.prompt.set_text(f"{text}\n{self.prompt.text}" if self.prompt.text else text)

    def run_on(self, turn: Turn, name: str) -> None:
        self.verbs.run_on(turn, name)

    def write_message(self, text: str) -> None:
        """Put a message into the prompt, its files beside it."""
        files, words = split_message(text)
        self.attaching.give_back(files)
        self.write_prompt(words)
        self.prompt.note_stored(words)

    def show_edit(self, text: str | None) -> None:
        if text is None:
            self.attaching.end_edit()
        else:
            files, words = split_message(text)
            self.attaching.begin_edit(files)
            self.write_prompt(words)
            self.prompt.note_stored(words)
        self.draw_heading()

    def whole_message(self, words: str) -> str:
        return before_message(self.attaching.attachments) + words

    def held_sessions(self) -> dict[str, Held]:
        return self._watch.held_sessions()

    def held_branches(self) -> dict[tuple[str, str], Held]:
        return self._watch.held_branches(self._opened())

    def draw_sessions(self, sessions: Sequence[SessionWithBranches], options: SessionListOptions) -> None:
        if self.is_attached and self.query(SessionList):  # the window may have been closed meanwhile
            self.query_one(SessionList).show_sessions(sessions, options)

    def draw_attachments(self, lines: Sequence[str]) -> None:
        self.draw_lines("#attachments", lines)

    # Conversations on screen and behind it

    def open_with(self, opener: Opener, draft: Draft | None = None) -> None:
        """Put another conversation on the screen; the one that was there stays open behind it, and what is
        being answered there goes on. What is entered meanwhile is meant for the one that comes.
        """
        self._give_back_entered()  # it was meant for what is opened no more
        self._is_opening, self._goes_on = True, False
        self._open(opener, draft)

    @work(exclusive=True, group="open")
    async def _open(self, opener: Opener, draft: Draft | None) -> None:
        self._reach.begin()
        try:
            conversation = await self._opened_by(opener)
        except KvchatError as error:
            self._is_opening = False
            self.warn(str(error))
            self._give_back_entered()
            return
        conversation = await self._put_on_screen(conversation, draft)
        self._is_opening = False
        self.attaching.read_again()
        self.begin(partial(self.keeping.give_back, conversation))
        self._take_entered()
        if conversation is not None:
            self.begin(partial(self._tell_reach, conversation), group="reach")
            for notice in await asyncio.to_thread(self._chat.notices, conversation):
                self.warn(notice)

    async def _opened_by(self, opener: Opener) -> "Conversation | None":
        """Return what is opened; what comes when nobody waits for it any more is closed."""
        opening = asyncio.ensure_future(opener())
        try:
            return await asyncio.shield(opening)
        except asyncio.CancelledError:
            opening.add_done_callback(self._close_late)
            raise

    def _close_late(self, opening: "asyncio.Future[Conversation | None]") -> None:
        if not opening.cancelled() and opening.exception() is None and self.is_attached:
            self.run_worker(self._close(self._unseen(opening.result())))

    def _unseen(self, conversation: "Conversation | None") -> "list[Conversation]":
        """Return a conversation that was opened and is neither on screen nor behind it, to be closed."""
        is_open = conversation is None or any(one is conversation for one in self._opened())
        return [] if conversation is None or is_open else [conversation]

    async def _put_on_screen(
        self, conversation: "Conversation | None", draft: Draft | None
    ) -> "Conversation | None":
        """Show what was opened, as it was left if it is kept. Let go of what leaves, also when ended."""
        closing: list[Conversation] = []
        before = self.turns.conversation
        try:
            is_gone = await self.branching.leave_aside(conversation)
            if self.turns.conversation is not None and not self.turns.is_busy and not is_gone:
                closing += self._kept.keep(self.turns.conversation)
            if conversation is not None:
                conversation, stale = self._kept.take(conversation)
                closing += stale
            self.courses.end_edit()
            await self.turns.show(conversation, draft)
        finally:  # beside this: the next one to be opened ends this
            closing += self._unseen(conversation)
            self.begin(partial(self.temporary.left, before))
            if closing:
                self.begin(partial(self._close, closing))
        return conversation

    def on_prompt_submitted(self, event: Prompt.Submitted) -> None:
        if self._is_opening:
            self._entered.append(event)
            if not event.is_command:
                self.attaching.waiting.append(event.text)
        elif event.is_command:
            self.at_key(event.pressed_s, partial(self.verbs.run, event.text))
        else:
            send = partial(self.sending.send, event.text, event.pasted, event.stored)
            self.at_key(event.pressed_s, send)

    def _take_entered(self) -> None:
        """Do what was entered while the conversation came on screen; the rest waits if that opens another."""
        for event in self._let_go_of_entered():
            self.on_prompt_submitted(event)

    def _give_back_entered(self) -> None:
        """Put what was meant for a conversation that did not come into the prompt again; the history has the
        commands among messages.
        """
        entered = self._let_go_of_entered()
        has_messages = any(not event.is_command for event in entered)
        for event in entered:
            # A mark in them reads no file at the next enter either.
            for text in (*event.pasted, *event.stored):
                self.prompt.note_stored(text)
            if event.is_command and has_messages:
                self.prompt.remember(event.text, is_command=True)
        for event in reversed(entered):
            if not event.is_command:
                self.give_back(event.text)
            elif not has_messages:
                self.restore_command(event.text)

    def _let_go_of_entered(self) -> Sequence[Prompt.Submitted]:
        entered, self._entered = self._entered, []
        for event in entered:
            if not event.is_command:
                self.attaching.waiting.remove(event.text)
        return entered

    async def _tell_reach(self, conversation: "Conversation") -> None:
        """Say how much of a conversation that has come on screen need not be computed, unless it goes on: its
        answer says so then.
        """
        await asyncio.sleep(_AT_REST_S)
        is_over = self._goes_on or self.turns.is_busy or self.turns.conversation is not conversation
        if is_over or not self.is_engine_ready:
            return
        with suppress(KvchatError):
            if words := await asyncio.to_thread(self._reach.words, conversation):
                self.tell(words)

    def keep_behind(self, conversation: "Conversation") -> None:
        """Keep a conversation open that something has come on screen for."""
        self.run_worker(self._close(self._kept.keep(conversation)))

    def come_back_to(self, conversation: "Conversation") -> "Conversation":
        """Take a conversation from behind, as it was left unless somebody has moved it since."""
        shown, stale = self._kept.take(conversation)
        self.run_worker(self._close(stale))
        return shown

    async def leave_session(self, session_id: SessionId, branch: str | None = None) -> None:
        """Take a session, or that branch alone, off the screen and let go of what it holds."""
        closing = self._kept.drop_session(session_id)
        self.branching.forget_asides(session_id, branch)
        shown = self.turns.conversation
        if shown is not None and shown.session.id == session_id and branch in (None, shown.branch.name):
            closing.append(shown)
            await self.turns.show(None)
        await self._close(closing)

    async def let_go_of_engine(self) -> None:
        await self._close(self._kept.drop_all())

    async def _close(self, conversations: "Sequence[Conversation]") -> None:
        for conversation in conversations:
            await asyncio.to_thread(self._chat.close, conversation)

    # TurnListener

    def queue_changed(self) -> None:
        # Later: what starts at once was never seen to wait, and would have everything laid out for nothing.
        self.call_later(self._draw_queue)

    def turn_produced(self) -> None:
        self._drain.wake()

    def conversation_changed(self) -> None:
        self.draw_heading()
        self.shelf.refresh()

    def turn_failed(self, error: Exception, unsent: str) -> None:
        self.notify(str(error) or type(error).__name__, severity="error", timeout=15, markup=False)
        self.give_back(unsent)

    def outgrown(self, fits_in: tuple[str, ...]) -> None:
        self.formats.offer(fits_in, self._queued_s)

    def warn_behind(self, conversation: "Conversation | None", message: str) -> None:
        title = "" if conversation is None else self.shelf.title(conversation.session.id)
        self.notify(message, title=title, severity="warning", timeout=15, markup=False)

    def ended_behind(self, conversation: "Conversation") -> None:
        if self.branching.is_aside(conversation) or self.temporary.is_temporary(conversation):
            self.begin(partial(self._let_go_behind, conversation))
            return
        self.tell("the answer has ended", title=self.shelf.title(conversation.session.id))
        self.run_worker(self._close(self._kept.keep(conversation)))

    async def _let_go_behind(self, conversation: "Conversation") -> None:
        """Throw away what is not to stay once it is answered: an aside first, which may be temporary too."""
        await self.branching.end_behind(conversation)
        await self.temporary.left(conversation)

    def turn_ended(self) -> None:
        if not self.turns.is_any_running:
            self._drain.stop()
        self._watch.forget_rate()
        answer = self.transcript.last_answer
        if answer is not None:
            self._last_rate = answer.turn.timings.decode_tokens_per_s
        self.conversation_changed()
        self._start_next()

    # Drawing

    def on_resize(self, event: events.Resize) -> None:
        self.call_after_refresh(self.draw_heading)

    def _draw_queue(self) -> None:
        waiting = [
            one_line(shown_message(pending.text)) or pending.kind.value for pending in self.turns.queue
        ]
        asked = [f"changed {one_line(shown_message(text))}" for text in self.courses.asked]
        self.draw_lines("#queue", [*asked, *(f"queued  {line}" for line in waiting)])

    def _start_next(self) -> None:
        if self._watch.is_ready and self.turns.start_next():
            self._drain.start()

    def _look(self) -> None:
        """Draw the engine's state, and come back: often while an answer is written."""
        conversation = self.turns.conversation
        shown = Shown(
            session=conversation.session if conversation else None,
            names=self._branch_names(),
            context_len=self.turns.context_len,
            is_running=self.turns.is_running,
            num_queued=len(self.turns.queue),
            own_keys=self.own_keys,
            last_rate=self._last_rate,
        )
        self.set_timer(self._watch.look(shown), self._look)
        if monotonic() - self.typed_s > _TYPING_S:
            self.shelf.keep_fresh()
        self._look_for_garbage()
        if self._watch.snapshot is not None and (closing := self._kept.drop_for_room(self._watch.snapshot)):
            self.run_worker(self._close(closing))

    def _look_for_garbage(self) -> None:
        """Let full collections wait until no key was pressed for a while and nothing has scrolled."""
        place = self.transcript.scroll_offset, self.transcript.num_hidden
        is_still, self._place = place == self._place, place
        self.turns.look_for_garbage(is_quiet=is_still and monotonic() - self.typed_s > _QUIET_S)

    def _branch_names(self) -> BranchNames:
        return self.shelf.sessions.branch_names(self.turns.conversation, [*self._kept, *self.turns.behind])

    def _opened(self) -> "list[Conversation]":
        """Return the conversations that are open: on screen, behind it, and being answered there."""
        here = self.turns.conversation
        return [*([here] if here is not None else []), *self._kept, *self.turns.behind]

    def _phase_changed(self, status: EngineStatus) -> None:
        self._draw_welcome()
        if status.phase is EnginePhase.READY:
            self.turns.settle_garbage()
            self.turns.forget_outgrown()
            self.attaching.read_again()
            self._goes_on = self.turns.is_busy
            self._start_next()
            if self.turns.conversation is not None:
                self.begin(partial(self._tell_reach, self.turns.conversation), group="reach")
        elif status.phase is EnginePhase.FAILED:
            reason = status.error or status.detail or "the engine stopped"
            self.fail(f"{reason}\n/reload loads it again; what was said is kept", title="engine")
            self.give_back(self.turns.stop_all())

    def draw_heading(self) -> None:
        if not self.query("#heading"):  # the window is being closed
            return
        conversation = self.turns.conversation
        heading = self.query_one("#heading", Static)
        width = heading.content_size.width
        if self.courses.editing is not None:
            text = editing_text(self.courses.costs, width, key_name(self.own_keys, "stop"))
        else:
            stored = self.shelf.sessions.title(conversation.session.id) if conversation else None
            stop = key_name(self.own_keys, "stop")
            note = _ASIDE_NOTE.format(stop) if self.branching.aside is not None else ""
            is_temporary = self.temporary.is_shown
            title = stored or self.turns.draft.title or (_TEMPORARY if is_temporary else "")
            if is_temporary and conversation is not None:
                note = note or _TEMPORARY_NOTE
            text = heading_text(conversation, title, width, note)
        heading.update(Content(text), layout=False)
        self._draw_welcome()

    def _draw_welcome(self) -> None:
        num_stored, key = len(self.shelf.sessions.entries), key_name(self.own_keys, "help")
        self.transcript.show_welcome(welcome_text(self._watch.status.phase, num_stored, key))
