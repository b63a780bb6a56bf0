"""Conversations of the window: on screen, behind it, asides, temporary ones; and what other windows add."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING

from kvchat.engine.api.inspection import InspectedBlock
from kvchat.engine.api.snapshot import CacheSnapshot
from kvchat.errors import KvchatError
from kvchat.session.tree import Branch, Finish, SessionId, TurnId
from kvchat.text.cache_usage import reach_words
from kvchat.text.figures import plural
from kvchat.text.fit_text import one_line
from kvchat.ui.controllers.composer import ComposerController
from kvchat.ui.controllers.drafts import DraftController
from kvchat.ui.controllers.revisions import RevisionController
from kvchat.ui.controllers.screen_services import ScreenServices
from kvchat.ui.controllers.throwaway import AsideController, TemporaryController
from kvchat.ui.state.cached_prefix import path_request
from kvchat.ui.state.conversation_tab import Draft
from kvchat.ui.state.kept_conversations import KeptConversations
from kvchat.ui.widgets.prompt_input import Prompt

if TYPE_CHECKING:
    from kvchat.chat.conversation import Conversation

_LOOK_S = 0.4
_ABOUT = "other window"
_NEW_BRANCH = "Another window has begun the branch {0} · /switch {0} opens it"
_DELETED = "Another window has deleted {0}; what you send begins a conversation"
_ANSWERING = "Another window is being answered here; its messages are shown at the end"
_UNSHOWN = "{} · shown once the prompt is empty; what you send before goes to a branch of its own"

Opener = Callable[[], Awaitable["Conversation"]]
"""Gets the conversation to show."""

_AT_REST_S = 0.3
"""What is good to know before the next message is told when a conversation has stood for this long."""
_TEMPORARY_NOTE = "deleted when you leave"
_ASIDE_NOTE = "deleted when you leave · {} goes back"
_BEGUN = (
    "deleted, words and KV, when you leave it; /temp again keeps it."
    " Until then it is stored: kvchat --temp writes nothing at all"
)


class ConversationController:
    """Puts conversations on the screen, and lets go of those that leave it.

    Attributes:
        asides, temporary: those that are thrown away when they are left.
        goes_on: whether anything was sent since a conversation has come on screen, or an engine for it.
    """

    def __init__(
        self,
        screen: ScreenServices,
        composer: ComposerController,
        revisions: RevisionController,
        drafts: DraftController,
    ) -> None:
        self._screen = screen
        self._chat = screen.chat
        self._engine = screen.engine
        self._turns = screen.turns
        self._composer = composer
        self._revisions = revisions
        self._drafts = drafts
        self._loaded_before = 0
        self._kept = KeptConversations()
        self._is_opening = False
        self._entered: list[Prompt.Submitted] = []
        self.goes_on = False
        self.asides = AsideController(screen, self.keep_behind, self.come_back_to)
        self.temporary = TemporaryController(screen, self.leave_session)
        self._others = OtherWindows(screen)

    @property
    def opened(self) -> "list[Conversation]":
        """Return the conversations that are open: on screen, behind it, and being answered there."""
        here = self._turns.conversation
        return [*([here] if here is not None else []), *self._kept, *self._turns.behind]

    def note(self, stop: str) -> str:
        """Return what is special about the conversation on screen. `stop`: the key that leaves an aside."""
        here = self._turns.conversation
        system = self._turns.tab.draft.system if here is None else here.session.system
        notes = [_ASIDE_NOTE.format(stop)] if self.asides.shown is not None else []
        if self.temporary.is_shown and here is not None and not notes:
            notes = [_TEMPORARY_NOTE]
        if system != self._turns.system:
            notes.append("own system prompt" if system else "no system prompt")
        return "".join(f"  ·  {note}" for note in notes)

    def open_temporary(self) -> None:
        """Begin a temporary conversation; keep the one on screen where it is one."""
        if self.temporary.is_shown:
            self.temporary.keep()
        else:
            self.open_draft(Draft(system=self._turns.system, is_temporary=True))
            self._screen.tell(_BEGUN, title="temporary")

    def hold(self, event: Prompt.Submitted) -> bool:
        """Return whether a conversation is on its way that this was entered for, and keep it until then."""
        if not self._is_opening:
            return False
        self._entered.append(event)
        if not event.is_command:
            self._composer.waiting.append(event.text)
        return True

    def engine_loaded(self, is_answering: bool) -> None:
        """Tell how much of the conversation on screen the engine has, unless it goes on."""
        self.goes_on = is_answering
        if self._turns.conversation is not None:
            self._screen.begin(partial(self._tell_cached, self._turns.conversation), group="cached")

    def look(self, snapshot: CacheSnapshot | None) -> None:
        """Look whether another window has written, and close the oldest behind the screen if a whole context
        would no longer fit beside what is held. Called often.
        """
        self._others.look()
        if snapshot is not None and (closing := self._kept.drop_for_room(snapshot)):
            self._screen.begin(partial(self._close, closing))

    def is_thrown_away(self, conversation: "Conversation") -> bool:
        """Whether a conversation is not to stay once it is answered behind the screen."""
        return self.asides.aside_of(conversation) is not None or self.temporary.is_temporary(conversation)

    async def end_behind(self, conversation: "Conversation") -> None:
        """Throw away what is not to stay: an aside first, which may be temporary too."""
        await self.asides.end_behind(conversation)
        await self.temporary.left(conversation)

    def throw_all_away(self) -> None:
        """Throw away what is not to stay, before the interface is left."""
        self.asides.throw_all_away()
        self.temporary.delete_all()

    def open_with(self, opener: Opener | None, draft: Draft | None = None) -> None:
        """Put another conversation or a draft on the screen; the one that was there stays open behind it, and
        what is being answered there goes on. What is entered meanwhile is meant for the one that comes.
        """
        self._give_back_entered()  # it was meant for what is opened no more
        self._drafts.leave()
        self._is_opening, self.goes_on = True, False
        self._screen.begin(partial(self._open, opener, draft), group="open")

    def open_draft(self, draft: Draft) -> None:
        """Put a conversation on the screen that its first message will begin; see `open_with`."""
        self.open_with(None, draft)

    async def _open(self, opener: Opener | None, draft: Draft | None) -> None:
        self._loaded_before = _loaded_bytes(self._engine.snapshot())
        try:
            conversation = None if opener is None else await self._opened_by(opener)
        except KvchatError as error:
            self._is_opening = False
            self._screen.warn(str(error))
            self._give_back_entered()
            return
        conversation = await self._put_on_screen(conversation, draft)
        self._is_opening = False
        self._composer.read_again()
        self._screen.begin(partial(self._drafts.give_back, conversation))
        for event in self._let_go_of_entered():  # the rest waits if that opens another
            self._screen.submit(event)
        if conversation is not None:
            self._screen.begin(partial(self._tell_cached, conversation), group="cached")
            for notice in await asyncio.to_thread(self._chat.notices, conversation):
                self._screen.warn(notice)

    async def _opened_by(self, opener: Opener) -> "Conversation":
        """Return what is opened; what comes when nobody waits for it any more is closed."""
        opening = asyncio.ensure_future(opener())
        try:
            return await asyncio.shield(opening)
        except asyncio.CancelledError:
            opening.add_done_callback(self._close_unused)
            raise

    def _close_unused(self, opening: "asyncio.Future[Conversation]") -> None:
        if not opening.cancelled() and opening.exception() is None and self._screen.is_attached:
            self._screen.begin(partial(self._close, self._unseen(opening.result())))

    def _unseen(self, conversation: "Conversation | None") -> "list[Conversation]":
        """Return a conversation that was opened and is neither on screen nor behind it, to be closed."""
        is_open = conversation is None or any(one is conversation for one in self.opened)
        return [] if conversation is None or is_open else [conversation]

    async def _put_on_screen(
        self, conversation: "Conversation | None", draft: Draft | None
    ) -> "Conversation | None":
        """Show what was opened, as it was left if it is kept. Let go of what leaves, also when ended."""
        closing: list[Conversation] = []
        before = self._turns.conversation
        try:
            is_gone = await self.asides.leave(conversation)
            if self._turns.conversation is not None and not self._turns.is_busy and not is_gone:
                closing += self._kept.keep(self._turns.conversation)
            if conversation is not None:
                conversation, stale = self._kept.take(conversation)
                closing += stale
            self._revisions.end_edit()
            await self._turns.show(conversation, draft)
        finally:  # beside this: the next one to be opened ends this
            closing += self._unseen(conversation)
            self._screen.begin(partial(self.temporary.left, before))
            if closing:
                self._screen.begin(partial(self._close, closing))
        return conversation

    def _give_back_entered(self) -> None:
        """Put what was meant for a conversation that did not come into the prompt again; the history has the
        commands among messages.
        """
        entered = self._let_go_of_entered()
        has_messages = any(not event.is_command for event in entered)
        for event in entered:
            # A mark in them reads no file at the next enter either.
            for text in (*event.pasted, *event.stored):
                self._screen.prompt.note_stored(text)
            if event.is_command and has_messages:
                self._screen.prompt.remember(event.text, is_command=True)
        for event in reversed(entered):
            if not event.is_command:
                self._composer.give_back(event.text)
            elif not has_messages:
                self._screen.prompt.restore_command(event.text)

    def _let_go_of_entered(self) -> Sequence[Prompt.Submitted]:
        entered, self._entered = self._entered, []
        for event in entered:
            if not event.is_command:
                self._composer.waiting.remove(event.text)
        return entered

    async def _tell_cached(self, conversation: "Conversation") -> None:
        """Say how much of a conversation that has come on screen need not be computed, unless it goes on: its
        answer says so then.
        """
        await asyncio.sleep(_AT_REST_S)
        is_over = self.goes_on or self._turns.is_busy or self._turns.conversation is not conversation
        if is_over or not self._screen.is_engine_ready:
            return
        with suppress(KvchatError):
            if words := await asyncio.to_thread(self._cached_words, conversation):
                self._screen.tell(words)

    def _cached_words(self, conversation: "Conversation") -> str:
        """Return what need not be computed, where that is, and what was loaded since it began to come."""
        cost = self._chat.variants.reach(conversation)
        blocks: Sequence[InspectedBlock] = ()
        with suppress(KvchatError):
            blocks = self._engine.inspect(path_request(conversation))
        snapshot = self._engine.snapshot()
        loaded = max(0, _loaded_bytes(snapshot) - self._loaded_before)
        return reach_words(cost, snapshot, blocks, loaded)

    def keep_behind(self, conversation: "Conversation") -> None:
        """Keep a conversation open that something has come on screen for."""
        self._screen.begin(partial(self._close, self._kept.keep(conversation)))

    def come_back_to(self, conversation: "Conversation") -> "Conversation":
        """Take a conversation from behind, as it was left unless somebody has moved it since."""
        shown, stale = self._kept.take(conversation)
        self._screen.begin(partial(self._close, stale))
        return shown

    async def leave_session(self, session_id: SessionId, branch: str | None = None) -> None:
        """Take a session, or that branch alone, off the screen and let go of what it holds."""
        closing = self._kept.drop_session(session_id)
        self.asides.forget(session_id, branch)
        shown = self._turns.conversation
        if shown is not None and shown.session.id == session_id and branch in (None, shown.branch.name):
            closing.append(shown)
            await self._turns.show(None)
        await self._close(closing)

    async def let_go_of_engine(self) -> None:
        await self._close(self._kept.drop_all())

    async def _close(self, conversations: "Sequence[Conversation]") -> None:
        for conversation in conversations:
            await asyncio.to_thread(self._chat.close, conversation)


def _loaded_bytes(snapshot: CacheSnapshot | None) -> int:
    return snapshot.moved.from_host + snapshot.moved.from_disk if snapshot is not None else 0


class OtherWindows:
    """Looks whether another window has written, while nothing is answered in this one."""

    def __init__(self, screen: ScreenServices) -> None:
        self._screen = screen
        self._chat = screen.chat
        self._turns = screen.turns
        self._looked_s = 0.0
        self._is_looking = False
        self._version: tuple[int, int] | None = None
        self._known: tuple[SessionId | None, frozenset[str]] = None, frozenset()
        self._told: TurnId | None = None
        """The last message that is not shown yet, and has been told of."""

    def look(self) -> None:
        """Look in a thread if it is time; call it often. It reads no row where nobody has written."""
        if not (self._is_looking or self._turns.is_busy) and monotonic() - self._looked_s >= _LOOK_S:
            self._is_looking, self._looked_s = True, monotonic()
            self._screen.begin(self._look)

    async def _look(self) -> None:
        with suppress(KvchatError):  # told by whoever needs what cannot be read
            version, before = await asyncio.to_thread(self._chat.store.version), self._version
            shown = self._turns.conversation
            is_due = self._told is not None and not self._screen.prompt.text
            if shown is not None and (version != before or is_due or shown.session.id != self._known[0]):
                branches = await asyncio.to_thread(self._chat.store.branches, shown.session.id)
                is_newer = await asyncio.to_thread(self._chat.store.version) != version
                has_moved_here = self._turns.is_busy or self._turns.conversation is not shown
                if not is_newer and not has_moved_here:
                    is_theirs = before is not None and version[0] != before[0]
                    await self._compare(shown, branches, is_theirs=is_theirs)
                    self._version = version
            else:
                self._version = version
        self._is_looking = False

    async def _compare(self, shown: "Conversation", branches: Sequence[Branch], *, is_theirs: bool) -> None:
        (session_id, known), names = self._known, frozenset(branch.name for branch in branches)
        here = next((branch for branch in branches if branch.name == shown.branch.name), None)
        begun = names - known - {shown.branch.name} if session_id == shown.session.id else frozenset()
        if here is None:  # it may have got its name from its first message
            new = [one for one in branches if one.name in begun or session_id != shown.session.id]
            here = await asyncio.to_thread(self._gone_on, shown, new)
        if here is not None and here.name != shown.branch.name:
            names, begun = names - {here.name}, begun - {here.name}  # until it is shown by that name
        self._known = shown.session.id, names
        if is_theirs and begun:
            for name in sorted(begun):
                self._screen.warn(_NEW_BRANCH.format(one_line(name)))
            self._screen.conversation_changed()
        if here is None:
            await self._leave(shown, "this branch" if branches else "this conversation")
        elif here.leaf_id is None or here.leaf_id == shown.branch.leaf_id:
            self._tell(None)
        elif (await asyncio.to_thread(self._chat.store.turn, here.leaf_id)).finish is Finish.PARTIAL:
            self._tell(here.leaf_id, _ANSWERING)
        else:
            await self._show(shown, here.name)

    def _gone_on(self, shown: "Conversation", branches: Sequence[Branch]) -> Branch | None:
        """Return which of some branches has all that is shown, and more."""
        ids = [turn.id for turn in shown.turns]
        for branch in branches:
            path = [turn.id for turn in self._chat.store.turns_to(branch.leaf_id)]
            if ids and len(path) > len(ids) and path[: len(ids)] == ids:
                return branch
        return None

    async def _leave(self, shown: "Conversation", what: str) -> None:
        self._screen.warn(_DELETED.format(what))
        await asyncio.to_thread(self._chat.close, shown)
        await self._turns.show(None)
        self._screen.conversation_changed()

    async def _show(self, shown: "Conversation", branch: str) -> None:
        """Show what was added to the branch on screen, unless a message is being written here."""
        fresh = await asyncio.to_thread(self._chat.open, shown.session.id, branch)
        if self._turns.conversation is not shown or self._turns.is_busy:
            await asyncio.to_thread(self._chat.close, fresh)
            return
        words = f"Another window has added {plural(len(fresh.turns) - len(shown.turns), 'message')} here"
        if fresh.turns[: len(shown.turns)] != shown.turns:
            words = "Another window has changed this branch"
        if self._screen.prompt.text:
            self._tell(fresh.branch.leaf_id, _UNSHOWN.format(words))
            await asyncio.to_thread(self._chat.close, fresh)
            return
        self._tell(None)
        await asyncio.to_thread(self._chat.close, shown)
        self._turns.replace(fresh)
        await self._turns.show(fresh)
        self._screen.tell(words)

    def _tell(self, leaf_id: TurnId | None, words: str = "") -> None:
        """Let a line stand about messages that are not shown yet; None: all are."""
        if leaf_id is None:
            self._screen.notices.dismiss(_ABOUT)
        elif leaf_id != self._told:
            self._screen.notices.stand(_ABOUT, words)
        self._told = leaf_id
