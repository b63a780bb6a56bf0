"""Other ways for the conversation on screen: at a message, at a token, several at once, aside."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Protocol

from kvchat.chat.events import MOST_SAMPLES, Alternative, EditCost
from kvchat.engine.api.snapshot import CacheSnapshot
from kvchat.errors import KvchatError
from kvchat.platform.values import dataclass
from kvchat.session.tree import Role, SessionId, Turn
from kvchat.text.attachments import shown_message
from kvchat.text.cache_usage import in_bytes, price_words
from kvchat.text.figures import plural
from kvchat.text.plain_text import fitted, one_line
from kvchat.ui.controllers.screen_services import ScreenServices
from kvchat.ui.controllers.turn_runner import PendingTurn, TurnKind, TurnRunner
from kvchat.ui.screens.actions import Action, ActionsScreen

if TYPE_CHECKING:
    from kvchat.chat.conversation import Conversation
    from kvchat.chat.service import Chat

_ASIDE = "aside"
_TITLE_LEN = 50
_FREE = EditCost(reused_tokens=0, computed_tokens=0, left_turns=0, left_tokens=0)


class BranchServices(ScreenServices, Protocol):
    """What other ways need of the screen."""

    @property
    def snapshot(self) -> CacheSnapshot | None: ...

    def queue(self, pending: PendingTurn) -> None: ...

    def open_with(self, opener: "Callable[[], Awaitable[Conversation | None]]") -> object: ...

    def write_message(self, text: str) -> None:
        """Put a message into the prompt, its files beside it."""
        ...

    def keep_behind(self, conversation: "Conversation") -> None: ...

    def come_back_to(self, conversation: "Conversation") -> "Conversation": ...

    def run_on(self, turn: Turn, name: str) -> None:
        """Run a command on one message."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Aside:
    """What an aside was opened beside."""

    here: "Conversation"
    back: "Conversation"

    def is_line_of(self, conversation: "Conversation | None") -> bool:
        """Whether a conversation is this aside, also where it was opened anew."""
        here = self.here
        if conversation is None or conversation is here:
            return conversation is here
        return (conversation.session.id, conversation.branch.name) == (here.session.id, here.branch.name)


class BranchController:
    """Runs what leads away from the last answer. Prices are looked up before anything is done."""

    def __init__(self, screen: BranchServices, chat: "Chat", turns: TurnRunner) -> None:
        self._screen = screen
        self._chat = chat
        self._turns = turns
        self._asides: list[Aside] = []  # on screen, or being answered behind it

    # At a message

    def choose(self, turn: Turn) -> None:
        """Let the person choose what to do with a message."""
        self._screen.begin(partial(self._choose, turn))

    def fork_at(self, turn: Turn, name: str = "") -> None:
        """Go on behind an answer, or before a question with its text in the prompt, on a new branch."""
        self._screen.open_with(partial(self._fork_at, turn, name))

    async def _choose(self, turn: Turn) -> None:
        conversation = self._turns.conversation
        if conversation is None:
            return
        actions = await self._actions(conversation, turn)
        who = "you" if turn.role is Role.USER else "kvchat"
        title = f"{who}: {fitted(one_line(shown_message(turn.text)), _TITLE_LEN)}"
        chosen = await self._screen.ask_late(title, partial(ActionsScreen, title, actions))
        match chosen:
            case "f":
                self.fork_at(turn)
            case "t":
                await self._open_tokens(conversation, turn)
            case str():
                self._screen.run_on(turn, _COMMANDS[chosen])

    async def _actions(self, conversation: "Conversation", turn: Turn) -> Sequence[Action]:
        """Return what can be done, with what it costs where the engine can say."""
        fork = price_words(await self._fork_cost(conversation, turn), self._screen.snapshot)
        if turn.role is Role.USER:
            return (
                Action(key="e", label="change it", note="on a new branch; says what it costs"),
                Action(key="f", label="fork before it", note=fork),
                Action(key="d", label="leave it out", note="with its answer; asks first"),
                Action(key="c", label="copy"),
                Action(key="o", label="open in $EDITOR"),
            )
        is_last = [one.id for one in conversation.turns[-1:]] == [turn.id]
        tokens = plural(len(turn.token_ids or ()), "token")
        again = await self._again_actions(conversation) if is_last else ()
        return (
            Action(key="f", label="fork behind it", note=fork),
            *again,
            Action(key="t", label="open as tokens", note=tokens),
            Action(key="w", label="why it computed what it did"),
            Action(key="c", label="copy"),
            Action(key="k", label="copy its code"),
            Action(key="o", label="open in $EDITOR"),
        )

    async def _again_actions(self, conversation: "Conversation") -> Sequence[Action]:
        price = await self._retry_price(conversation)
        temperature = self._chat.variants.retry_temperature
        label = "answer again" if temperature is None else f"answer again, at {temperature}"
        return (
            Action(key="r", label=label, note=price or "on a new branch"),
            Action(
                key="3",
                label="three answers, compared",
                note="the same, once for all" if price else "from one prompt",
            ),
        )

    async def _retry_price(self, conversation: "Conversation") -> str:
        """Return what answering the last question again costs; empty where the engine cannot say it now."""
        if not self._screen.is_engine_ready or self._turns.is_busy:
            return ""
        with suppress(KvchatError):
            cost = await asyncio.to_thread(self._chat.variants.retry_cost, conversation)
            return price_words(cost, self._screen.snapshot)
        return ""

    def _differing_words(self) -> str:
        temperature = self._chat.variants.retry_temperature
        return "" if temperature is None else f"sampled at temperature {temperature}, so that it can differ"

    def retry(self) -> None:
        """Answer the last question again, and say first what that costs."""
        self._screen.begin(self._retry)

    async def _retry(self) -> None:
        conversation = self._turns.conversation
        if conversation is not None and (price := await self._retry_price(conversation)):
            self._screen.tell(price, title="answer again")
        if words := self._differing_words():
            self._screen.tell(words, title="answer again")
        self._screen.queue(PendingTurn(kind=TurnKind.RETRY))

    def price_so_far(self, conversation: "Conversation") -> str:
        """Return what a fork behind the last message shares; it computes nothing before the next one."""
        if all(turn.token_ids is None for turn in conversation.turns):
            return "what is shared is up to the server"
        shared = sum(len(turn.token_ids or ()) for turn in conversation.turns)
        return price_words(replace(_FREE, reused_tokens=shared), self._screen.snapshot)

    async def _fork_cost(self, conversation: "Conversation", turn: Turn) -> EditCost:
        """Return what a fork shares; nothing is computed before the next message."""
        ids = [one.id for one in conversation.turns]
        end = ids.index(turn.id) + (turn.role is Role.ASSISTANT) if turn.id in ids else 0
        shared = sum(len(one.token_ids or ()) for one in conversation.turns[:end])
        return replace(_FREE, reused_tokens=shared)

    async def _fork_at(self, turn: Turn, name: str) -> "Conversation":
        conversation = self._turns.stored
        before = turn.parent_id if turn.role is Role.USER else turn.id
        if before is None:
            self._screen.warn("nothing stands before the first message: /new begins another conversation")
            return conversation
        forked: Conversation = await asyncio.to_thread(self._chat.fork, conversation, before, name or None)
        if turn.role is Role.USER:
            self._screen.write_message(turn.text)
        self._screen.tell(f"on branch {one_line(forked.branch.name)}: {self.price_so_far(forked)}")
        return forked

    # Several answers

    def compare(self, num: int) -> None:
        """Answer the last question several times at once, and go on with the one that is chosen."""
        if not 2 <= num <= MOST_SAMPLES:
            self._screen.warn(f"2 to {MOST_SAMPLES} answers can be compared")
            return
        self._screen.begin(partial(self._compare, num))

    async def _compare(self, num: int) -> None:
        conversation = self._turns.stored
        from kvchat.ui.screens.compare import CompareScreen

        variants = self._chat.variants
        try:
            cost = await asyncio.to_thread(variants.retry_cost, conversation)
            price = f"{price_words(cost, self._screen.snapshot)}, once for all {num} answers"
            produce = partial(variants.compare, conversation, num)
            stop = partial(self._chat.stop, conversation)
            offer = f"{num} answers to compare can be written: {price}"
            compare = partial(CompareScreen, num, produce, stop, price)
            chosen = await self._screen.ask_late(offer, compare)
            if chosen is None:
                self._screen.tell("the answer stays as it was; /search finds the others")
                return
            await asyncio.to_thread(variants.take, conversation, chosen)
        except KvchatError as error:
            self._screen.warn(str(error))
            return
        await self._turns.show(conversation)
        self._screen.tell(
            f"on branch {one_line(conversation.branch.name)}; the others gave their blocks back, "
            "/search finds their words"
        )

    # Tokens

    def open_tokens(self, turn: Turn) -> None:
        self._screen.begin(partial(self._open_tokens, self._turns.stored, turn))

    async def _open_tokens(self, conversation: "Conversation", turn: Turn) -> None:
        if not self._screen.is_engine_ready:
            self._screen.warn("its alternatives are known when the model is loaded")
            return
        variants = self._chat.variants
        try:
            texts = await asyncio.to_thread(variants.token_texts, turn)
        except KvchatError as error:
            self._screen.warn(str(error))
            return
        if not texts:
            self._screen.warn("this answer has no tokens")
            return
        from kvchat.ui.screens.tokens import TokensScreen

        looks = _Looks(self._chat, conversation, turn, self._screen)
        tokens = partial(TokensScreen, texts, turn.token_ids or (), looks)
        chosen = await self._screen.ask_late("an answer as tokens", tokens)
        if chosen is not None and conversation is not self._turns.conversation:
            self._screen.warn("another conversation is on the screen now; nothing was changed")
        elif chosen is not None:
            at, token_id = chosen
            self._screen.queue(PendingTurn(kind=TurnKind.TOKEN, turn_id=turn.id, at=at, token_id=token_id))

    # Asides

    @property
    def aside(self) -> Aside | None:
        """The aside on screen, if there is one."""
        return self._aside_of(self._turns.conversation)

    def _aside_of(self, conversation: "Conversation | None") -> Aside | None:
        found = next((one for one in self._asides if one.is_line_of(conversation)), None)
        if found is None or conversation is None:
            return None
        return replace(found, here=conversation)  # opened anew, it knows what was said since

    def begin_aside(self, text: str) -> None:
        """Ask something on a fork that is thrown away afterwards."""
        self._screen.begin(partial(self._begin_aside, text))

    async def _begin_aside(self, text: str) -> None:
        back = self._turns.conversation
        assert back is not None
        if self.aside is None:
            self._screen.tell(self.price_so_far(back), title=_ASIDE)
            try:
                here: Conversation = await asyncio.to_thread(self._free_aside, back)
            except KvchatError as error:
                self._screen.warn(str(error))
                return
            self._asides.append(Aside(here=here, back=back))
            await self._turns.show(here)
            self._screen.keep_behind(back)
            self._screen.tell("this is thrown away when you leave it: esc or /aside goes back", title=_ASIDE)
        if text:
            self._screen.queue(PendingTurn(kind=TurnKind.SEND, text=text))

    def _free_aside(self, back: "Conversation") -> "Conversation":
        taken = {branch.name for branch in self._chat.store.branches(back.session.id)}
        name = next(name for name in _names() if name not in taken)
        found: Conversation = self._chat.fork(back, None, name)
        return found

    def end_aside(self) -> None:
        """Throw the aside away and go back to where it began."""
        aside = self.aside
        if self._turns.is_busy:
            self._screen.warn("the aside is being answered: esc stops it, then go back")
        elif aside is not None:
            self._screen.begin(partial(self._end_aside, aside))

    async def leave_aside(self, to: "Conversation | None") -> bool:
        """Throw the aside away because something else comes on screen, and return whether that was done.

        One that is being answered goes behind the screen, and is thrown away when its answer has ended.
        """
        aside = self.aside
        if aside is None or aside.is_line_of(to) or self._turns.is_busy:
            return False
        return await self._throw_away(aside)

    async def _end_aside(self, aside: Aside) -> None:
        is_gone = await self._throw_away(aside)
        await self._turns.show(self._screen.come_back_to(aside.back))
        self._tell_end(aside, is_gone)

    def is_aside(self, conversation: "Conversation") -> bool:
        return self._aside_of(conversation) is not None

    async def end_behind(self, conversation: "Conversation") -> None:
        """Throw away what has been answered behind the screen, if it is an aside."""
        aside = self._aside_of(conversation)
        if aside is not None:
            self._tell_end(aside, await self._throw_away(aside))

    async def _throw_away(self, aside: Aside) -> bool:
        self.forget_asides(aside.here.session.id, aside.here.branch.name)
        try:
            return bool(await asyncio.to_thread(self._chat.variants.throw_away, aside.here, aside.back))
        except KvchatError as error:
            self._screen.warn(str(error))
            return False

    def throw_all_away(self) -> None:
        """Throw away every aside, before the interface is left; one that still writes stays."""
        shown = self.aside
        for one in self._asides:
            aside = shown if shown is not None and one.is_line_of(shown.here) else one
            if not self._turns.is_writing(aside.here):
                with suppress(KvchatError):
                    self._chat.variants.throw_away(aside.here, aside.back)
        self._asides = []

    def _tell_end(self, aside: Aside, is_gone: bool) -> None:
        if not is_gone:
            self._screen.tell("the aside stays: a branch rests on it")
            return
        before, after = (
            sum(len(turn.token_ids or ()) for turn in one.turns) for one in (aside.back, aside.here)
        )
        num_gone = max(0, after - before)
        gone = f", with {plural(num_gone, 'token')}{in_bytes(num_gone, self._screen.snapshot)}"
        self._screen.tell(f"the aside is gone{gone if num_gone else ''}")

    def forget_asides(self, session_id: SessionId, branch: str | None = None) -> None:
        """Let a session's lines, or that one alone, be asides no more: they are gone, or kept."""
        self._asides = [
            one
            for one in self._asides
            if one.here.session.id != session_id or branch not in (None, one.here.branch.name)
        ]


class _Looks:
    """Asks the engine about places of one answer."""

    def __init__(
        self, chat: "Chat", conversation: "Conversation", turn: Turn, screen: BranchServices
    ) -> None:
        self._variants = chat.variants
        self._conversation = conversation
        self._turn = turn
        self._screen = screen

    async def alternatives(self, at: int) -> Sequence[Alternative]:
        return await asyncio.to_thread(self._variants.alternatives, self._conversation, self._turn.id, at)

    async def price(self, at: int) -> str:
        cost = await asyncio.to_thread(self._variants.token_cost, self._conversation, self._turn.id, at)
        return price_words(cost, self._screen.snapshot)


_COMMANDS = {
    "e": "edit",
    "d": "drop",
    "r": "retry",
    "3": "compare",
    "w": "why",
    "c": "copy",
    "k": "code",
    "o": "open",
}


def _names() -> Sequence[str]:
    return [_ASIDE, *(f"{_ASIDE}-{number}" for number in range(2, 1000))]
