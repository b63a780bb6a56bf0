"""The format that the KV of the conversation on screen is kept in: what another costs, and taking it."""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from kvchat.engine.api.cache_format import EXACT
from kvchat.engine.api.view import SHADOW
from kvchat.errors import KvchatError
from kvchat.session.kv.provenance import origin_of
from kvchat.text.figures import plural
from kvchat.ui.controllers.screen_services import ScreenServices
from kvchat.ui.controllers.settings import SettingsController

if TYPE_CHECKING:
    from kvchat.chat.conversation import Conversation

_AVAILABLE = "Available: fp8, int8, int4, int2, k=int8,v=int4, shadow:25%, exact (/cache format NAME)"
_LOSSY = (
    "Every answer on it is approximate, and what is lost comes back only where all is computed again. "
    "The engine is loaded again, and keeps all conversations of this window in this format from then on."
)
_SEEN = (
    "Every answer on it is approximate; the blocks stay as they were computed, and /cache format exact goes "
    "back to them. The engine is loaded again, and all long conversations of this window are looked at so."
)
_IN_HOST_MEMORY = f"Its blocks may lie in host memory then. {_SEEN}"
_EXACTLY = "What is computed again: {}, when it goes on. The engine is loaded again, with an exact cache."

_BACK = "; /cache format exact goes back"
_GO_ON = f"{_BACK}; enter sends the message again, f5 goes on with an answer"


class FormatController:
    """Measures what formats lose, and changes the format once the person has seen that."""

    def __init__(self, screen: ScreenServices, settings: SettingsController) -> None:
        self._screen = screen
        self._host = screen.host
        self._turns = screen.turns
        self._settings = settings

    def choose(self, conversation: "Conversation", wanted: str) -> None:
        """Keep the KV of the conversation on screen in another format; without one, say which it is."""
        wanted, snapshot = wanted.lower(), self._screen.snapshot
        origin = origin_of(conversation.session.namespace)
        if not wanted:
            kept = EXACT if origin is None else f"{origin.cache_format}, converted"
            self._screen.tell(f"Format: {kept}. {_AVAILABLE}")
        elif wanted == EXACT and origin is None and (snapshot is None or snapshot.is_exact):
            self._screen.tell("Format: exact already")
        elif not self._is_answering():
            self._screen.tell(f"Measuring {wanted}; you can keep chatting")
            self._screen.begin(partial(self._choose, conversation, wanted), group="format")

    def offer(self, fits_in: Sequence[str], asked_s: float) -> None:
        """Offer the conversation on screen, which has outgrown the cache, the first format in which it has
        room. Where that is declined: a shadow, or fewer bits after one.

        Args:
            asked_s: when the key was pressed that the answer was for.
        """
        conversation = self._turns.conversation
        if conversation is not None:
            fewer_bits = [one for one in fits_in if not _is_shadow(one)][:1]
            offered = [one for one in fits_in if _is_shadow(one) or one in fewer_bits]
            self._screen.begin(partial(self._offer, conversation, offered), group="format", asked_s=asked_s)

    async def gauge(self, conversation: "Conversation", cache_format: str) -> None:
        """Measure one format, or the usual ones, on what is stored of a conversation; then show it."""
        self._screen.tell("Measuring what formats lose; you can keep chatting")
        session, branch = conversation.session.id, conversation.branch.name
        found = await asyncio.to_thread(self._host.gauge, session, branch, cache_format)
        from kvchat.ui.screens.gauge import GaugeScreen

        offer = "what smaller cache formats lose here is measured"
        await self._screen.dialogs.ask_deferred(offer, partial(GaugeScreen, found))

    async def _offer(self, conversation: "Conversation", offered: Sequence[str]) -> None:
        session_id = conversation.session.id
        for wanted in offered:
            cost = await self._cost_of_going_on(conversation, wanted)
            if cost is None:
                continue
            what = "Look at it through" if _is_shadow(wanted) else "Keep its KV in"
            question = f"The cache has no room for this conversation exactly. {what} {wanted}?"
            consequence = _IN_HOST_MEMORY if _is_shadow(wanted) else _LOSSY
            if await self._screen.dialogs.confirm(question, f"{cost}\n\n{consequence}", is_offer=True):
                change = partial(self._host.go_on_in, session_id, wanted)
                await self._begin_in(conversation, wanted, change, then=_GO_ON)
                return

    async def _cost_of_going_on(self, conversation: "Conversation", wanted: str) -> str | None:
        """Return what is told of a format before it is taken; None: this model has no such shadow."""
        if not conversation.turns:
            how = "it is read exactly, and then looked at" if _is_shadow(wanted) else "all of it is computed"
            return f"Nothing of it is stored: {how} in {wanted}."
        try:
            return await asyncio.to_thread(self._host.format_cost, conversation.session.id, wanted)
        except KvchatError as error:
            return None if _is_shadow(wanted) else f"What it loses here is not known: {error}"

    async def _choose(self, conversation: "Conversation", wanted: str) -> None:
        session_id = conversation.session.id
        cost = await asyncio.to_thread(self._host.format_cost, session_id, wanted)
        consequence = _SEEN if _is_shadow(wanted) else _LOSSY
        if wanted == EXACT:
            consequence = _EXACTLY.format(plural(self._turns.context_len, "token"))
        if not await self._screen.dialogs.confirm(
            f"Store the KV of all open conversations as {wanted}?", f"{cost}\n\n{consequence}"
        ):
            return
        back = "" if wanted == EXACT else _BACK
        change = partial(self._host.use_format, session_id, wanted)
        await self._begin_in(conversation, wanted, change, then=back)

    async def _begin_in(
        self, conversation: "Conversation", wanted: str, change: Callable[[], str], *, then: str
    ) -> None:
        """Change the format if all is as it was when that was asked for, and say what was done."""
        if conversation is not self._turns.conversation:
            self._screen.warn("another conversation is on the screen now; nothing was changed")
        elif not self._is_answering():
            words = await self._settings.begin_anew(change)
            if words is not None:
                self._screen.tell(words + then, title=wanted)

    def _is_answering(self) -> bool:
        is_answering = self._turns.is_any_running or self._turns.is_busy
        if is_answering:
            self._screen.warn("an answer is being written: esc stops it, then choose a format")
        return is_answering


def _is_shadow(wanted: str) -> bool:
    return wanted.startswith(SHADOW)
