"""A conversation as Markdown: what was said is shown as it was said, and does nothing else."""

import re
from html import unescape

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from kvchat.platform.printable_text import clean_text
from kvchat.session.render.markdown_text import Document, DocumentMessage, harmless, markdown_text, plain
from kvchat.session.tree import Role

pytestmark = pytest.mark.pure

TROUBLE = st.text(st.sampled_from("<>`~*_[]()!\\#-=+1.&;:|$\n \tab/\"'{}"), max_size=40)
HTML = ("<script>", "</b>", "<!--", "-->", "<a href='`'>", "<?x ?>", "&lt;", "<http://a`b>")
LINKS = ("![a](http://x/y)", "[a](javascript:x)", "[a]", "[a]: javascript:x", "[a]: <")
STRUCTURE = ("`", "``", "```", "~~~", "\n", "\n\n", "    ", "\t", "> ", "- ", "1. ", "\\", "===", "# ", "x ")
OTHERS = ("|a|b|\n|-|-|\n", "\u2028", "\x1b[31m", "\u202e")
PIECES = st.lists(st.sampled_from(HTML + LINKS + STRUCTURE * 2 + OTHERS), max_size=14).map("".join)


def reader() -> MarkdownIt:
    parser = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"])
    parser.validateLink = lambda url: True  # type: ignore[method-assign]
    return parser


def shown(markdown: str) -> str:
    """Return the text that a reader sees, a line per line break."""
    html = reader().render(markdown)
    return unescape(re.sub(r"<[^>]*>", "", html.replace("<br />\n", "\n"))).strip("\n")


@given(TROUBLE | PIECES | st.text(max_size=30))
@example("1. one\n2) two\n\n    indented\n\tand <b>so</b> `on` [x](y)")
@example("a\n===\n- b\n# c\n***\n> d")
def test_what_a_person_wrote_is_shown_line_by_line_as_it_was_written(text: str) -> None:
    lines = [line.rstrip() for line in clean_text(text).replace("\u00a0", " ").strip("\n").split("\n")]
    seen = shown(plain(text)).replace("\u00a0", " ")
    assert [line.strip() for line in seen.split("\n") if line.strip()] == [
        line.strip() for line in lines if line
    ]
    types = {token.type for token in reader().parse(plain(text))}
    assert types <= {"paragraph_open", "inline", "paragraph_close"}


@given(PIECES | TROUBLE)
@example("\\`<script>`\n\n```\n<b>")
@example("\t<script>alert(1)</script>")
@example("<!--\n```\n-->\n<script>")
@example("[x]: javascript:alert(1)")
@example("1.\t x\n\n\n\t<!--- ")  # code, until a quotation shifts its tab
def test_nothing_in_an_answer_is_html_a_picture_or_a_link_to_a_program(text: str) -> None:
    known: dict[str, dict[str, dict[str, str]]] = {}
    tokens = reader().parse(f"before [a]\n\n{harmless(text)}\n\n## after [a]", known)
    inner = [child for token in tokens for child in token.children or ()]
    assert not {token.type for token in [*tokens, *inner]} & {"html_block", "html_inline", "image"}
    links = [str(token.attrGet("href")) for token in inner if token.type == "link_open"]
    links += [definition["href"] for definition in known.get("references", {}).values()]
    assert all(link.startswith(("http://", "https://", "mailto:")) for link in links)


@given(PIECES | TROUBLE)
def test_no_answer_swallows_or_forges_what_stands_behind_it(text: str) -> None:
    answer = DocumentMessage(role=Role.ASSISTANT, text=text + "\n## you\n\n# title\n```")
    asked = DocumentMessage(role=Role.USER, text="And then? # you")
    page = markdown_text(Document(title="t", facts=(), system="", messages=(asked, answer, asked)))
    tokens = reader().parse(page)
    headings = [
        tokens[at + 1].content
        for at, one in enumerate(tokens)
        if one.type == "heading_open" and one.level == 0
    ]
    assert headings == ["t", "you", "kvchat", "you"]


def test_code_stays_code_and_formatting_stays() -> None:
    text = (
        "Use `<b>` **now**:\n\n```html\n<b>x</b>\n```\n\n"
        "| a | b |\n|---|---|\n| 1 | `<` |\n\n- [page](https://a.org)"
    )
    assert harmless(text) == "\n".join(f"> {line}".rstrip() for line in text.split("\n"))


def test_the_page_says_who_said_what_and_what_it_cost() -> None:
    messages = (
        DocumentMessage(role=Role.USER, text="How do I get\nto *Oslo*?"),
        DocumentMessage(
            role=Role.ASSISTANT, text="By **train**.", reasoning="hm", notes=("reused 3 of 9", "exact")
        ),
    )
    document = Document(
        title="Trip to <Oslo>", facts=("starter", "branch main"), system="Be brief.", messages=messages
    )
    assert markdown_text(document) == (
        "# Trip to \\<Oslo>\n\nstarter · branch main\n\n## system prompt\n\nBe brief.\n\n"
        "## you\n\nHow do I get\\\nto \\*Oslo\\*?\n\n"
        "## kvchat\n\n*thought:* hm\n\n> By **train**.\n\n*reused 3 of 9 · exact*\n"
    )
