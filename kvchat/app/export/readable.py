"""A session written down for people and for other programs: Markdown, a web page, JSON. Loads no model."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from time import localtime, strftime

from kvchat.app.export.formats import Format
from kvchat.session.render.markdown_text import Document, DocumentMessage
from kvchat.session.tree import Branch, Finish, Role, Session, Turn
from kvchat.text.answer_footer import footer_parts
from kvchat.text.figures import plural
from kvchat.text.fit_text import UNTITLED
from kvchat.text.trust import trust_words

_ENDINGS = {
    Finish.LENGTH: "stopped at the length limit",
    Finish.INTERRUPTED: "interrupted",
    Finish.PARTIAL: "still being written",
    Finish.ERROR: "ended by an error",
}


def portable_name(model: str) -> str:
    """Return a model's name without where it lies on this machine."""
    return Path(model).name if Path(model).is_absolute() else model


def readable_text(format: Format, session: Session, branches: Sequence[Branch], turns: Sequence[Turn]) -> str:
    """Return a session as text.

    Args:
        branches: for Markdown and the web page the one that ends with the turns.
        turns: a parent before its children.
    """
    # Imported as they are needed: a bundle needs no Markdown.
    if format is Format.JSON:
        from kvchat.session.render.json_text import json_text

        portable = [replace(turn, model=portable_name(turn.model)) for turn in turns]
        return json_text(replace(session, model=portable_name(session.model)), branches, portable)
    document = _document(session, branches[0], turns)
    if format is Format.MARKDOWN:
        from kvchat.session.render.markdown_text import markdown_text

        return markdown_text(document)
    from kvchat.session.render.web_page import web_page

    return web_page(document)


def _document(session: Session, branch: Branch, turns: Sequence[Turn]) -> Document:
    return Document(
        title=session.title or UNTITLED,
        facts=tuple(_facts(session, branch, turns)),
        system=session.system,
        messages=tuple(
            DocumentMessage(
                role=turn.role, text=turn.text, reasoning=turn.reasoning, notes=_notes(turn, session)
            )
            for turn in turns
        ),
    )


def _facts(session: Session, branch: Branch, turns: Sequence[Turn]) -> Iterator[str]:
    if session.model:
        yield portable_name(session.model)
    yield f"branch {branch.name}"
    yield strftime("%Y-%m-%d %H:%M", localtime(session.created_at))
    yield plural(len(turns), "message")
    yield plural(sum(len(turn.token_ids or ()) for turn in turns), "token")
    if trust := trust_words(session):
        yield trust


def _notes(turn: Turn, session: Session) -> tuple[str, ...]:
    if turn.role is Role.USER:
        return ()
    ending = (_ENDINGS[turn.finish],) if turn.finish in _ENDINGS else ()
    return ending + footer_parts(turn, session)
