"""A conversation as a document: the values exports are made of, and the Markdown parser of answers."""

from markdown_it import MarkdownIt

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


def answer_parser() -> MarkdownIt:
    """Return a parser that shows HTML as the text it is, and makes no link of `end.Next`."""
    return MarkdownIt("gfm-like", {"html": False, "linkify": False})
