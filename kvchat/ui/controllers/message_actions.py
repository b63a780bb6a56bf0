"""Branch controller: other ways for the conversation on screen, at a message, at a token, several at once."""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from math import inf
from time import monotonic
from typing import TYPE_CHECKING

from rich.cells import cell_len
from textual.content import Content
from textual.style import Style

from kvchat.chat.events import MOST_SAMPLES, Alternative, ChatEvent
from kvchat.errors import KvchatError
from kvchat.session.tree import Role, Turn, TurnId, live_part
from kvchat.text.attached_files import shown_message
from kvchat.text.cache_usage import price_words
from kvchat.text.figures import plural
from kvchat.text.fit_text import fitted, one_line, padded
from kvchat.ui.controllers.composer import ComposerController
from kvchat.ui.controllers.conversations import ConversationController
from kvchat.ui.controllers.screen_services import ScreenServices
from kvchat.ui.controllers.throwaway import fork_price, price_so_far
from kvchat.ui.state.conversation_tab import Draft, QueuedTurn
from kvchat.ui.widgets.prompt_input import Prompt

if TYPE_CHECKING:
    from kvchat.chat.conversation import Conversation
    from kvchat.chat.service import Chat

_TITLE_LEN = 50
_SUM_UP = (
    "Sum up our conversation so far for someone who goes on with it: facts, decisions and open questions, "
    "in at most 300 words."
)
_SUMMARY_TOKENS = 700
"""Room for that and its answer."""
_SUMMED_UP = "Summary of the conversation so far:"


@dataclass(frozen=True, slots=True)
class Action:
    """One line of what can be done with a message: `key` chooses it. `note` says what it costs."""

    key: str
    command: str
    label: str
    note: str = ""

    def line(self, width: int) -> Content:
        key = Content.styled(f" {self.key}  ", Style(bold=True))
        note = Content.styled(f"   {self.note}" if self.note else "", "$note")
        return key + Content(padded(self.label, width)) + note


class MessageActionsController:
    """Runs what leads away from the last answer. Prices are looked up before anything is done."""

    def __init__(
        self, screen: ScreenServices, composer: ComposerController, conversations: ConversationController
    ) -> None:
        self._screen = screen
        self._chat = screen.chat
        self._turns = screen.turns
        self._conversations = conversations
        self._composer = composer

    # At a message

    async def choose(self, turn: Turn) -> None:
        conversation = self._turns.conversation
        if conversation is None:
            return
        from kvchat.ui.screens.choices import ChoiceScreen

        actions = await self._actions(conversation, turn)
        who = "you" if turn.role is Role.USER else "kvchat"
        title = f"{who}: {fitted(one_line(shown_message(turn.text)), _TITLE_LEN)}"
        width, keys = max(cell_len(one.label) for one in actions), [one.key for one in actions]
        lines = [one.line(width) for one in actions]
        menu = partial(ChoiceScreen, title, lines, keys=keys)
        chosen = await self._screen.dialogs.ask_deferred(title, menu)
        match None if chosen is None else actions[chosen].command:
            case "fork":
                self._conversations.open_with(partial(self._fork_at, turn))
            case "tokens":
                await self.open_tokens(conversation, turn)
            case str(command):
                self._screen.run_on(turn, command)

    async def _actions(self, conversation: "Conversation", turn: Turn) -> Sequence[Action]:
        """Return what can be done, with what it costs where the engine can say."""
        ids = [one.id for one in conversation.turns]
        end = ids.index(turn.id) + (turn.role is Role.ASSISTANT) if turn.id in ids else 0
        fork = fork_price(conversation.turns[:end], self._screen.snapshot)
        if turn.role is Role.USER:
            return (
                Action("e", "edit", "change it", "on a new branch; says what it costs"),
                Action("f", "fork", "fork before it", fork),
                Action("d", "drop", "remove it", "with its answer; asks first"),
                Action("c", "copy", "copy"),
                Action("o", "open", "open in $EDITOR"),
            )
        is_last = ids[-1:] == [turn.id]
        tokens = plural(len(turn.token_ids or ()), "token")
        again = await self._again_actions(conversation) if is_last else ()
        return (
            Action("f", "fork", "fork after it", fork),
            *again,
            Action("t", "tokens", "open as tokens", tokens),
            Action("w", "why", "explain its reuse"),
            Action("c", "copy", "copy"),
            Action("k", "code", "copy its code"),
            Action("o", "open", "open in $EDITOR"),
        )

    async def _again_actions(self, conversation: "Conversation") -> Sequence[Action]:
        price = await self._retry_price(conversation)
        temperature = self._chat.retry_temperature
        label = "answer again" if temperature is None else f"answer again, at {temperature}"
        once = "the same, once for all" if price else "from one prompt"
        return (
            Action("r", "retry", label, price or "on a new branch"),
            Action("3", "compare", "three answers, compared", once),
        )

    async def _retry_price(self, conversation: "Conversation") -> str:
        """Return what answering the last question again costs; empty where the engine cannot say it now."""
        if not self._screen.is_engine_ready or self._turns.is_busy:
            return ""
        with suppress(KvchatError):
            cost = await asyncio.to_thread(self._chat.variants.retry_cost, conversation)
            return price_words(cost, self._screen.snapshot)
        return ""

    async def retry(self) -> None:
        """Answer the last question again, and say first what that costs."""
        conversation = self._turns.conversation
        words = [] if conversation is None else [await self._retry_price(conversation)]
        if (temperature := self._chat.retry_temperature) is not None:
            words.append(f"sampled at temperature {temperature}, so that it can differ")
        if any(words):
            self._screen.tell(" · ".join(filter(None, words)), title="answer again")
        self._screen.queue(QueuedTurn(run=lambda chat, here: chat.retry(here), name="retry"))

    def fork(self, name: str) -> None:
        self._conversations.open_with(partial(self._forked, None, name))

    async def _fork_at(self, turn: Turn) -> "Conversation":
        """Go on behind an answer, or before a question with its text in the prompt, on a new branch."""
        before = turn.parent_id if turn.role is Role.USER else turn.id
        if before is None:
            self._screen.warn("nothing stands before the first message: /new begins another conversation")
            return self._turns.stored
        forked = await self._forked(before)
        if turn.role is Role.USER:
            self._composer.write_message(turn.text)
        return forked

    async def _forked(self, last: TurnId | None, name: str = "") -> "Conversation":
        """Return a new branch that ends with a turn, by default the last, and say what it shares."""
        original = self._turns.stored
        kept_on = one_line(original.branch.name)
        forked = await asyncio.to_thread(self._chat.fork, original, last, name or None)
        self._conversations.goes_on = True  # all that is cached is said here
        price = price_so_far(forked, self._screen.snapshot)
        branch = one_line(forked.branch.name)
        self._screen.tell(f"{price} · original kept on {kept_on}", title=f"branch {branch}")
        return forked

    # A summary

    def sum_up(self) -> None:
        """Ask for a summary on a branch; on that, begin a conversation with it in its system prompt."""
        conversation = self._turns.stored
        texts = [turn.text for turn in conversation.turns]
        if texts[-2:-1] == [_SUM_UP] and not conversation.turns[-1].is_open:
            session = conversation.session
            system = "\n\n".join(filter(None, (session.system, _SUMMED_UP, texts[-1].strip())))
            is_temporary = self._conversations.temporary.is_shown
            self._conversations.open_draft(Draft(system=system, is_temporary=is_temporary))
            self._screen.tell("this conversation begins with the summary; /system shows it")
            return
        last = self._last_with_room(conversation)
        if last is None:
            self._screen.warn("even its first message leaves no room for a summary")
            return
        self._conversations.open_with(partial(self._forked, last.id))
        self._conversations.hold(Prompt.Submitted(_SUM_UP, False, monotonic(), (), ()))
        num_out = len(conversation.turns) - [turn.id for turn in conversation.turns].index(last.id) - 1
        words = f"without the last {plural(num_out, 'message')}, for want of room; " if num_out else ""
        self._screen.tell(f"{words}/summary again begins a conversation with it", title="summary")

    def _last_with_room(self, conversation: "Conversation") -> Turn | None:
        """Return the last answer behind which a summary can be asked for and written."""
        snapshot, turns = self._screen.snapshot, live_part(conversation.turns)
        ends = accumulate(len(turn.token_ids or ()) for turn in turns)
        limit = inf if snapshot is None else snapshot.max_context
        room = limit - min(_SUMMARY_TOKENS, limit // 4)
        found = [
            turn for turn, end in zip(turns, ends, strict=True) if turn.role is Role.ASSISTANT and end <= room
        ]
        return found[-1] if found else None

    # Several answers

    async def compare(self, num: int) -> None:
        """Answer the last question several times at once, and go on with the one that is chosen."""
        if not 2 <= num <= MOST_SAMPLES:
            self._screen.warn(f"2 to {MOST_SAMPLES} answers can be compared")
            return
        from kvchat.ui.screens.compare import CompareScreen

        conversation, variants = self._turns.stored, self._chat.variants
        cost = await asyncio.to_thread(variants.retry_cost, conversation)
        price = f"{price_words(cost, self._screen.snapshot)}, once for all {num} answers"
        produce = partial(variants.compare, conversation, num, self._chat.sampling)
        stop = partial(self._chat.stop, conversation)
        offer = f"{num} answers to compare can be written: {price}"
        compare = partial(CompareScreen, num, produce, stop, price, self._screen.prompt)
        chosen = await self._screen.dialogs.ask_deferred(offer, compare)
        if chosen is None:
            self._screen.tell("the answer stays as it was; /search finds the others")
            return
        await asyncio.to_thread(variants.take, conversation, chosen)
        await self._turns.show(conversation)
        self._screen.tell(
            f"on branch {one_line(conversation.branch.name)}; the other answers' blocks were freed, "
            "/search finds their words"
        )

    # Tokens

    async def open_tokens(self, conversation: "Conversation", turn: Turn) -> None:
        if not self._screen.is_engine_ready:
            self._screen.warn("its alternatives are known when the model is loaded")
            return
        texts = await asyncio.to_thread(self._chat.variants.tokens.texts, turn)
        if not texts:
            self._screen.warn("this answer has no tokens")
            return
        from kvchat.ui.screens.tokens import TokensScreen

        alternatives = partial(self._alternatives, conversation, turn)
        price = partial(self._token_price, conversation, turn)
        tokens = partial(TokensScreen, texts, turn.token_ids or (), alternatives, price)
        chosen = await self._screen.dialogs.ask_deferred("an answer as tokens", tokens)
        if chosen is not None and conversation is not self._turns.conversation:
            self._screen.warn("another conversation is on the screen now; nothing was changed")
        elif chosen is not None:
            at, token_id = chosen

            def go_on(chat: "Chat", here: "Conversation") -> Iterator[ChatEvent]:
                return chat.variants.tokens.go_on(here, turn.id, at, token_id, chat.sampling)

            self._screen.queue(QueuedTurn(run=go_on, name="token"))

    async def _alternatives(self, conversation: "Conversation", turn: Turn, at: int) -> Sequence[Alternative]:
        return await asyncio.to_thread(self._chat.variants.tokens.alternatives, conversation, turn.id, at)

    async def _token_price(self, conversation: "Conversation", turn: Turn, at: int) -> str:
        cost = await asyncio.to_thread(self._chat.variants.tokens.cost, conversation, turn.id, at)
        return price_words(cost, self._screen.snapshot)
