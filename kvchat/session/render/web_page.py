"""A conversation as one self-contained web page: no script, no picture, no request to anywhere."""

from collections.abc import Iterable, Iterator, Sequence
from html import escape
from pathlib import Path
from typing import Any

from markdown_it.token import Token

from kvchat.platform.printable_text import clean_text, one_line
from kvchat.session.render.markdown_text import SAFE_LINK, SPEAKERS, Document, DocumentMessage, answer_parser
from kvchat.session.tree import Role

# Even if something slipped through, the page may load nothing and run nothing.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; form-action 'none'; base-uri 'none'"
_HIGHEST_HEADING = 3
_STYLES = Path(__file__).with_name("page.css")


def web_page(document: Document) -> str:
    """Return the whole document."""
    title = _text(one_line(document.title))
    lines = [
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        '<meta name="referrer" content="no-referrer">',
        f"<title>{title}</title>",
        f"<style>\n{_STYLES.read_text(encoding='utf-8')}</style>",
        "</head>\n<body>\n<main>",
        f"<h1>{title}</h1>",
        _spans("facts", document.facts),
    ]
    if document.system:
        lines += [_article("system", "system prompt", [f'<div dir="auto">{_text(document.system)}</div>'])]
    lines += [_message(message) for message in document.messages]
    lines += ['<p class="end">written by kvchat</p>\n</main>\n</body>\n</html>']
    return "\n".join(lines) + "\n"


def answer_html(text: str) -> str:
    """Return an answer's Markdown as HTML: HTML in it is text, pictures are links, links lead to pages."""
    parser = answer_parser()
    parser.validateLink = lambda url: bool(SAFE_LINK.match(url))  # type: ignore[method-assign]
    parser.disable("image")
    tokens = parser.parse(clean_text(text))
    return str(parser.renderer.render(list(_adapted(tokens)), parser.options, {}))


def _message(message: DocumentMessage) -> str:
    parts: list[str] = []
    if thought := clean_text(message.reasoning).strip():
        parts.append(f'<details><summary>thought</summary><div dir="auto">{escape(thought)}</div></details>')
    if message.role is Role.USER:
        parts.append(f'<div dir="auto">{_text(message.text)}</div>')
    elif message.text.strip():
        parts.append(f'<div dir="auto">\n{answer_html(message.text)}</div>')
    if message.notes:
        parts.append(_spans("notes", message.notes))
    return _article("asked" if message.role is Role.USER else "said", SPEAKERS[message.role], parts)


def _article(kind: str, heading: str, parts: Iterable[str]) -> str:
    return "\n".join([f'<article class="{kind}">', f"<h2>{heading}</h2>", *parts, "</article>"])


def _spans(kind: str, texts: Sequence[str]) -> str:
    return f'<p class="{kind}">' + "".join(f"<span>{_text(text)}</span>" for text in texts) + "</p>"


def _text(text: str) -> str:
    return escape(clean_text(text).strip("\n"))


def _adapted(tokens: Iterable[Token]) -> Iterator[Token]:
    """Yield tokens with headings below those of the page, and links that tell the other side nothing."""
    for token in tokens:
        if token.type in ("heading_open", "heading_close"):
            token.tag = f"h{min(6, int(token.tag[1:]) + _HIGHEST_HEADING - 1)}"
        for child in token.children or ():
            if child.type == "link_open":
                attributes: dict[str, Any] = {"rel": "noopener noreferrer"}
                child.attrs.update(attributes)
        yield token
