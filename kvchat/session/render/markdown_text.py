"""A conversation as Markdown.

What a person wrote is plain text, escaped. An answer is Markdown already and stands in a quotation, where it
cannot begin another message, and a code fence that it left open ends with it. In both there is no HTML, no
picture that a reader's program would fetch, and no link that runs something.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from markdown_it import MarkdownIt
from markdown_it.token import Token

from kvchat.platform.printable_text import clean_text, one_line
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


SAFE_LINK = re.compile(r"(https?://|mailto:)", re.IGNORECASE)

_SPECIAL = re.compile(r"[\\`*_\[\]<&~|$]")
_OPENS_A_BLOCK = re.compile(r"(\s*)(#|>|\+|-|=|:|(?=\d{1,9}[.)]))")
_ORDERED = re.compile(r"(\s*\d{1,9})([.)])")
_ESCAPED = re.compile(r"\\[!-/:-@\[-`{-~]")
_BACKTICKS = re.compile(r"`+")
_SEPARATOR = " · "


def answer_parser() -> MarkdownIt:
    """Return a parser that shows HTML as the text it is, and makes no link of `end.Next`."""
    return MarkdownIt("gfm-like", {"html": False, "linkify": False})


def markdown_text(document: Document) -> str:
    """Return the whole document."""
    parts = [f"# {plain(one_line(document.title))}", plain(_SEPARATOR.join(document.facts))]
    if document.system:
        parts += ["## system prompt", plain(document.system)]
    for message in document.messages:
        parts += _message(message)
    return "\n\n".join(parts) + "\n"


def plain(text: str) -> str:
    """Return Markdown that shows a text as it is, line by line."""
    lines = [_plain_line(line) for line in clean_text(text).strip("\n").split("\n")]
    pairs = zip(lines, [*lines[1:], ""], strict=True)
    return "\n".join(f"{line}\\" if line and following else line for line, following in pairs)


def harmless(text: str) -> str:
    """Return an answer's Markdown with HTML, pictures and links to programs as the text that they are."""
    lines = [_without_tabs(line) for line in clean_text(text).strip("\n").split("\n")]
    quoted = "\n".join(f"> {line}".rstrip() for line in _escaped(lines))
    # Where the quotation changes what is code, nothing is left that could be HTML.
    return quoted.replace("<", "&lt;").replace("[", "&#91;") if _is_risky(quoted) else quoted


def _message(message: DocumentMessage) -> Iterator[str]:
    yield f"## {SPEAKERS[message.role]}"
    if message.reasoning.strip():
        yield f"*thought:* {plain(message.reasoning.strip())}"
    if message.text.strip():
        yield plain(message.text) if message.role is Role.USER else harmless(message.text)
    if message.notes:
        yield f"*{plain(_SEPARATOR.join(message.notes))}*"


def _plain_line(line: str) -> str:
    line = line.rstrip()
    text = line.lstrip()
    # No indentation is code: spaces that do not break are none to Markdown.
    indent = "\u00a0" * len(line[: len(line) - len(text)].expandtabs(4))
    escaped = _SPECIAL.sub(r"\\\g<0>", text)
    if opening := _ORDERED.match(escaped):
        return f"{indent}{opening[1]}\\{escaped[opening.end() - 1 :]}"
    return f"{indent}\\{escaped}" if _OPENS_A_BLOCK.match(escaped) else indent + escaped


def _without_tabs(line: str) -> str:
    text = line.lstrip(" \t")
    return line[: len(line) - len(text)].expandtabs(4) + text


def _escaped(lines: list[str]) -> list[str]:
    """Return lines of Markdown in which no HTML and no picture is left outside code."""
    for _ in range(3):
        tokens, has_unsafe_link = _read("\n".join(lines))
        lines = _escaped_by(tokens, lines, "<[" if has_unsafe_link else "<")
        if not _is_risky("\n".join(lines)):
            break
    return lines


def _escaped_by(tokens: Iterable[Token], lines: list[str], signs: str) -> list[str]:
    escaped = [_without_markup(line, signs) for line in lines]
    for token in tokens:
        start, end = token.map or (0, 0)
        if token.type in ("fence", "code_block"):
            escaped[start:end] = lines[start:end]
        elif token.type == "inline":
            escaped[start:end] = _without_markup("\n".join(lines[start:end]), signs).split("\n")
    return escaped


def _without_markup(text: str, signs: str) -> str:
    """Return a text with signs outside its code spans escaped, read from left to right as Markdown is."""
    out: list[str] = []
    at = 0
    while at < len(text):
        if escape := _ESCAPED.match(text, at):
            piece = escape[0]
        elif ticks := _BACKTICKS.match(text, at):
            end = _end_of_code(text, ticks)
            piece = text[at:end]
        elif text[at] in signs or text.startswith("![", at):
            out.append(_ESCAPES.get(text[at], "!\\["))
            at += 1 + (text[at] == "!")
            continue
        else:
            piece = text[at]
        out.append(piece)
        at += len(piece)
    return "".join(out)


_ESCAPES = {"<": "&lt;", "[": "\\["}


def _end_of_code(text: str, ticks: re.Match[str]) -> int:
    """Return where a code span ends that begins with some backticks; without an end they are only text."""
    closing = (run for run in _BACKTICKS.finditer(text, ticks.end()) if len(run[0]) == len(ticks[0]))
    return next((run.end() for run in closing), ticks.end())


def _is_risky(text: str) -> bool:
    tokens, has_unsafe_link = _read(text)
    return has_unsafe_link or any(token.type in _LIVE for token in _flat(tokens))


_LIVE = ("html_block", "html_inline", "image")


def _read(text: str) -> tuple[list[Token], bool]:
    """Return a text's tokens, and whether it has a link that is none to a page, or defines one. For HTML and
    for a link is taken whatever some program may take for one.
    """
    parser = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"])
    parser.validateLink = lambda url: True  # type: ignore[method-assign]
    parser.normalizeLink = lambda url: url  # type: ignore[method-assign]
    known: dict[str, Any] = {}
    tokens = parser.parse(text, known)
    links = [str(token.attrGet("href") or "") for token in _flat(tokens) if token.type == "link_open"]
    links += [definition["href"] for definition in known.get("references", {}).values()]
    return tokens, not all(map(SAFE_LINK.match, links))


def _flat(tokens: Iterable[Token]) -> Iterator[Token]:
    for token in tokens:
        yield token
        yield from token.children or ()
