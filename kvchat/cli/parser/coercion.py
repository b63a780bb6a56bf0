"""Words of the command line to values, without the validator that Typer would import for it.

Typer builds a pydantic adapter for every parameter of a command that runs, given or not; importing that
library alone takes as long as a list of sessions may. Text, paths, numbers, their ranges and lists of them
are read here; choices and whatever else a parameter says are left to Typer.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import isnan
from pathlib import Path
from typing import Any, get_args, get_origin

from typer._click import Context
from typer._click.exceptions import BadParameter
from typer._coercion import RuntimeParam

from kvchat.platform.parsing import is_text

HELP_NAMES = ("-h", "--help")
_NEVER_EMPTY = frozenset({"model", "named", "output", "pack", "remote", "session", "sessions"})
"""Nothing in their place, as from a variable of a shell that is not set, would mean something else. No path
may be empty either: it would be the current directory."""
_ANY_BYTES = frozenset({"question"})
"""Read by whoever replaces what is no text."""
_READERS = {str: "text", bool: "true or false", Path: "path", int: "whole number", float: "number"}
_WORDS = dict.fromkeys(("1", "true", "t", "yes", "y", "on"), True) | dict.fromkeys(
    ("0", "false", "f", "no", "n", "off"), False
)


@dataclass(frozen=True)
class PlainParam(RuntimeParam):
    """Reads one of the plain types, or a list of it."""

    kind: Any = str

    def _coerce_value(self, value: Any, param: Any, ctx: Context) -> Any:
        if isinstance(value, list | tuple):
            return [self._read(one, param, ctx) for one in value]
        return self._read(value, param, ctx)

    def _read(self, value: Any, param: Any, ctx: Context) -> Any:
        if isinstance(value, str) and (problem := self._problem(value, param)):
            raise BadParameter(problem, ctx=ctx, param=param)
        try:
            if not isinstance(value, self.kind):
                value = _WORDS[value.lower()] if self.kind is bool else self.kind(value)
            if self.kind is float and isnan(value):
                raise ValueError  # it would pass any limit
        except (KeyError, ValueError, AttributeError) as error:
            message = f"{value!r} is not a valid {_READERS[self.kind]}."
            raise BadParameter(message, ctx=ctx, param=param) from error
        least, most = self.parameter_info.min, self.parameter_info.max
        if (least is not None and value < least) or (most is not None and value > most):
            words = "at least" if least is not None and value < least else "at most"
            bound = least if words == "at least" else most
            shown = bound if isinstance(bound, int) else f"{bound:g}"
            raise BadParameter(f"{value} must be {words} {shown}.", ctx=ctx, param=param)
        return value

    def _problem(self, written: str, param: Any) -> str | None:
        """Return what keeps words from being a value of this kind at all."""
        if not written and (self.kind is Path or param.name in _NEVER_EMPTY):
            return "it is empty; give a value."
        if self.kind is str and param.name not in _ANY_BYTES and not is_text(written):
            return f"{written!r} is no text in UTF-8."
        return None


def ease(command: Any, words: Sequence[str]) -> None:
    """Let the command of a command line read plain parameters without Typer's validator.

    Args:
        words: the command line, the command first.
    """
    context = Context(command, help_option_names=list(HELP_NAMES))
    for parameter in [*command.params, command.get_help_option(context)]:
        descriptor = parameter.type_descriptor
        kind = _plain_kind(descriptor)
        if kind is not None:
            parameter._runtime_param = PlainParam(
                parameter_info=descriptor.parameter_info, annotation=descriptor.annotation, kind=kind
            )
    below = getattr(command, "commands", {})
    if words and words[0] in below:
        ease(below[words[0]], words[1:])


def _plain_kind(descriptor: Any) -> Any:
    """Return the plain type that a parameter takes, None where there is more to it."""
    annotation, info = descriptor.annotation, descriptor.parameter_info
    if get_origin(annotation) is list:
        [annotation] = get_args(annotation)
    is_free = descriptor.choices is None and descriptor.file_annotation is None
    checks = (getattr(info, name, False) for name in ("exists", "resolve_path"))
    return annotation if annotation in _READERS and is_free and not any(checks) else None
