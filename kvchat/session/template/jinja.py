"""Chat templates as Hugging Face renders them: jinja2 in a sandbox, without transformers.

A template is untrusted code. The sandbox gives it no attribute of a Python object that it could break out by,
and no way to change its input.
"""

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any, NoReturn

import jinja2
from jinja2.ext import Extension, loopcontrols
from jinja2.nodes import Node, Scope
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment


class TemplateRefusal(Exception):
    """The template raised: it cannot render these messages."""


class JinjaTemplate:
    """A compiled chat template.

    Raises:
        jinja2.TemplateSyntaxError: from the constructor, when the text is no template.
    """

    def __init__(self, source: str, names: Mapping[str, str]) -> None:
        self._names = dict(names)
        self._template = _environment().from_string(source)

    def render(self, messages: list[dict[str, str]], *, opens_answer: bool, now: datetime) -> str:
        """Return the text of a conversation.

        Args:
            opens_answer: end with the opening of an answer (`add_generation_prompt`).
            now: what `strftime_now` tells; the same for all turns of a conversation, or its prefix would
                change.

        Raises:
            TemplateRefusal: the template cannot take these messages.
        """
        try:
            return self._template.render(
                messages=messages,
                add_generation_prompt=opens_answer,
                tools=None,
                documents=None,
                strftime_now=now.strftime,
                **self._names,
            )
        except Exception as error:  # a stranger's code may raise anything
            raise TemplateRefusal(str(error)) from error


class _GenerationTag(Extension):
    """Lets `{% generation %}` pass; it marks answers for training and renders its body."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return Scope(body).set_lineno(line)


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    return environment


def _tojson(value: Any, ensure_ascii: bool = False, indent: int | None = None, **options: Any) -> str:
    # jinja's own filter escapes HTML, which no model was trained on.
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **options)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)
