"""A turn that waits to be run."""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from kvchat.chat.events import ChatEvent
from kvchat.session.tree import TurnId

if TYPE_CHECKING:
    from kvchat.chat.candidates.service import ReadAhead
    from kvchat.chat.conversation import Conversation
    from kvchat.chat.service import Chat


class TurnKind(StrEnum):
    SEND = "send"
    EDIT = "edit"
    RETRY = "retry"
    CONTINUE = "continue"
    TOKEN = "token"


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuedTurn:
    """A turn that waits. `text` is the message of SEND and EDIT; `turn_id` the message that EDIT changes, or
    the answer in which TOKEN puts another token `at` a place. `reading`: what was read ahead of the message.
    """

    kind: TurnKind
    text: str = ""
    turn_id: TurnId | None = None
    at: int = 0
    token_id: int = 0
    reading: "ReadAhead | None" = None

    def run(self, chat: "Chat", conversation: "Conversation") -> Iterator[ChatEvent]:
        """Yield what a conversation is answered."""
        match self.kind:
            case TurnKind.SEND:
                yield from chat.send(conversation, self.text)
            case TurnKind.EDIT:
                assert self.turn_id is not None
                yield from chat.edit(conversation, self.turn_id, self.text)
            case TurnKind.RETRY:
                yield from chat.retry(conversation)
            case TurnKind.CONTINUE:
                yield from chat.continue_answer(conversation)
            case TurnKind.TOKEN:
                assert self.turn_id is not None
                tokens = chat.variants.tokens
                yield from tokens.go_on(conversation, self.turn_id, self.at, self.token_id, chat.sampling)
