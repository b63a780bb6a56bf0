"""A conversation as it is written down for a reader: values that Markdown and the web page are made of."""

from kvchat.platform.values import dataclass
from kvchat.session.tree import Role

SPEAKERS = {Role.USER: "you", Role.ASSISTANT: "kvchat"}


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentMessage:
    """One message. `notes` say what it cost and how it ended, in order."""

    role: Role
    text: str
    reasoning: str = ""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """A conversation on one branch. `facts` stand under its title."""

    title: str
    facts: tuple[str, ...]
    system: str
    messages: tuple[DocumentMessage, ...]
