"""How an answer's Markdown is read, wherever it is shown: HTML in it is the text it is."""

from markdown_it import MarkdownIt


def answer_parser() -> MarkdownIt:
    """Return a parser that shows HTML as the text it is, and makes no link of `end.Next`."""
    return MarkdownIt("gfm-like", {"html": False, "linkify": False})
