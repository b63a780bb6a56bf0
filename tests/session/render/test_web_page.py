"""A conversation as a web page: one file, nothing that runs, nothing that is fetched."""

from collections.abc import Sequence
from html.parser import HTMLParser

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kvchat.session.render.markdown_text import Document, DocumentMessage
from kvchat.session.render.web_page import answer_html, web_page
from kvchat.session.tree import Role
from tests.session.render.test_markdown_text import PIECES, TROUBLE

pytestmark = pytest.mark.pure

IN_PAGE = {
    *("html", "head", "meta", "title", "style", "body", "main"),
    *("h1", "h2", "p", "span", "article", "div"),
}
IN_ANSWERS = {
    *("p", "em", "strong", "s", "code", "pre", "ul", "ol", "li", "blockquote", "hr", "br", "a"),
    *("table", "thead", "tbody", "tr", "th", "td", "h3", "h4", "h5", "h6"),
}
HOSTILE = "<script>alert(1)</script>\x1b[31m</style></title>\"' onload=x [bold]&amp;\u202e"


class Seen(HTMLParser):
    """What a browser finds on a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: list[tuple[str, str]] = []
        self.text = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: Sequence[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes += [(name, value or "") for name, value in attrs]

    def handle_data(self, data: str) -> None:
        self.text += data


def page(*messages: DocumentMessage, title: str = "t", system: str = "") -> str:
    return web_page(Document(title=title, facts=("starter",), system=system, messages=messages))


@given(PIECES | TROUBLE | st.text(max_size=30))
@example("![a](http://tracker/x.png) <img src=x> [a](javascript:x) [b](https://a.org) [c](file:///etc)")
def test_an_answer_makes_only_the_elements_of_markdown_and_links_to_pages(text: str) -> None:
    seen = Seen(answer_html(text))
    assert seen.tags <= IN_ANSWERS
    for name, value in seen.attributes:
        assert name in ("href", "title", "rel", "start", "class", "style")
        assert name != "href" or value.lower().startswith(("http://", "https://", "mailto:"))
        assert name != "style" or value.startswith("text-align:")


def test_whatever_was_said_the_page_holds_it_as_text_and_nothing_else() -> None:
    messages = (
        DocumentMessage(role=Role.USER, text=HOSTILE, reasoning=HOSTILE, notes=(HOSTILE,)),
        DocumentMessage(role=Role.ASSISTANT, text=HOSTILE, reasoning=HOSTILE, notes=(HOSTILE,)),
    )
    text = page(*messages, title=HOSTILE, system=HOSTILE)
    seen = Seen(text)
    assert seen.tags <= IN_PAGE | IN_ANSWERS | {"details", "summary"}
    assert {name for name, _ in seen.attributes} <= {"lang", "charset", "http-equiv", "content", "name"} | {
        "class",
        "dir",
    }
    assert seen.text.count("<script>alert(1)</script>[31m</style>") == 9
    assert not {"\x1b", "\u202e"} & set(text)


def test_the_page_needs_nothing_from_elsewhere() -> None:
    text = page(DocumentMessage(role=Role.ASSISTANT, text="![x](https://a.org/x.png)"))
    assert "default-src 'none'" in text
    for loading in ("src=", "url(", "@import", "<link", "<script", "<img"):
        assert loading not in text


def test_formatting_is_kept_and_headings_stand_below_those_of_the_page() -> None:
    html = answer_html(
        "# Head\n\n*By* **train**\n\n```python\nx < 1\n```\n\n|a|\n|-|\n|1|\n\n[p](https://a.org)"
    )
    for piece in (
        "<h3>Head</h3>",
        "<em>By</em> <strong>train</strong>",
        '<code class="language-python">x &lt; 1\n</code>',
        "<td>1</td>",
        '<a href="https://a.org" rel="noopener noreferrer">p</a>',
    ):
        assert piece in html


def test_a_person_s_lines_stay_as_they_were_typed() -> None:
    assert '<div dir="auto">a\n    b  *c*</div>' in page(
        DocumentMessage(role=Role.USER, text="a\n    b  *c*\n")
    )
