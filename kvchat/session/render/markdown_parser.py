"""Markdown parser of answers, wherever they are shown; HTML in it stays text."""

from markdown_it import MarkdownIt


def answer_parser() -> MarkdownIt:
    """Return a parser that shows HTML as the text it is, and makes no link of `end.Next`."""
    return MarkdownIt("gfm-like", {"html": False, "linkify": False})
