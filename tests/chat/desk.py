"""A chat with everything around it: a store, a template and a scripted engine."""

from pathlib import Path

from kvchat.chat.conversation import Conversation
from kvchat.chat.events import ChatEvent
from kvchat.chat.service import Chat
from kvchat.session.store import SessionStore
from kvchat.session.template.chat_template import ChatTemplate
from kvchat.session.template.text_stream import Piece
from tests.scripted_engine import ScriptedEngine

REPLY = "Hello, Grüße! The answer is no."


class Desk:
    """A chat with everything around it, on one database."""

    def __init__(self, home: Path, template: ChatTemplate, reply: str = REPLY) -> None:
        self.store = SessionStore(home / "sessions.db")
        self.template = template
        self.reply = reply
        self.engine = ScriptedEngine(self.script)
        self.chat = Chat(store=self.store, template=template, engine=self.engine, model="tiny")

    def script(self, prompt: tuple[int, ...]) -> list[int]:
        """Say the reply, from where the prompt has got to if it holds the beginning of it."""
        return [*self.template.tokenizer.encode(self.reply), min(self.template.end_ids)]

    def talk(self, *texts: str, title: str = "", system: str = "") -> Conversation:
        """Return a new conversation in which these messages were answered."""
        conversation = self.chat.create(title, system)
        for text in texts:
            list(self.chat.send(conversation, text))
        return conversation

    def seen(self, conversation: Conversation) -> str:
        return self.template.tokenizer.decode(conversation.token_ids or (), keep_control=True)


def shown(events: list[ChatEvent]) -> str:
    return "".join(event.text for event in events if isinstance(event, Piece) and not event.reasoning)
