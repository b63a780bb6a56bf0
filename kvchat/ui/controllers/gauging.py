"""Gauge controller: measures smaller cache formats on the conversation on screen."""

import asyncio
from functools import partial

from kvchat.app.host import InterfaceServices
from kvchat.app.services import ConversationView
from kvchat.errors import KvchatError
from kvchat.ui.controllers.screen_services import ScreenServices
from kvchat.ui.controllers.turn_runner import TurnRunner

_GROUP = "gauge"


class GaugeController:
    """Runs the gauge, which takes a while, beside everything else."""

    def __init__(self, screen: ScreenServices, host: InterfaceServices, turns: TurnRunner) -> None:
        self._screen = screen
        self._host = host
        self._turns = turns

    def gauge(self, cache_format: str = "") -> None:
        """Measure one format, or the usual ones, on what is stored of the conversation; then show it."""
        conversation = self._turns.conversation
        if conversation is None:
            self._screen.warn("nothing has been said here yet")
            return
        self._screen.tell("measuring what formats lose; go on meanwhile")
        self._screen.begin(partial(self._gauge, conversation, cache_format), group=_GROUP)

    async def _gauge(self, conversation: ConversationView, cache_format: str) -> None:
        session, branch = conversation.session.id, conversation.branch.name
        try:
            found = await asyncio.to_thread(self._host.gauge, session, branch, cache_format)
        except KvchatError as error:
            self._screen.warn(str(error))
        else:
            from kvchat.ui.screens.gauge import GaugeScreen

            offer = "what smaller cache formats lose here is measured"
            await self._screen.ask_late(offer, partial(GaugeScreen, found))
