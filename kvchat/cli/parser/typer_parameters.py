"""Options and arguments of a command as fields of a class, and how their words become values.

Typer parses the command line; the words of each option are read here, with messages of our own.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import isnan
from pathlib import Path
from typing import Any, TypeVar, dataclass_transform, get_args

from kvchat.platform.parsing import is_text

_READERS = {str: "text", Path: "path", int: "whole number", float: "number"}


class Parameter:
    """Declaration of one parameter, handed to Typer when its command is made.

    Args:
        names: what is typed for it.
        needs_value: refuse an empty word, as from a shell variable that is not set, where it would mean
            something else. An empty path is always refused: it would be the current directory.
        any_bytes: take words that are not UTF-8; whoever reads them replaces what is no text.
        setting: what it overrules, by its dotted name in `config.KEYS`.
        told: what Typer's function of the same name takes besides.
    """

    def __init__(
        self,
        *names: str,
        needs_value: bool = False,
        any_bytes: bool = False,
        setting: str | None = None,
        **told: Any,
    ) -> None:
        self.names = names
        self.setting = setting
        self.needs_value = needs_value
        self.any_bytes = any_bytes
        self.told = told

    def for_typer(self, annotation: Any) -> Any:
        """Return what Typer takes for a parameter of this type.

        Args:
            annotation: one of the types that are read here or a list of it, perhaps None; flags and choices
                are left to Typer.
        """
        import typer

        kind = _plain_type(annotation)
        told = self.told if kind is None else self.told | {"parser": self._reader(kind)}
        return getattr(typer, type(self).__name__)(*self.names, **told)

    def _reader(self, kind: type) -> Callable[[Any], Any]:
        import typer

        def read(written: Any) -> Any:
            """Return the value of a word; a default is a value already."""
            if isinstance(written, str) and (problem := self._problem(written, kind)):
                raise typer.BadParameter(problem)
            value = written
            try:
                if not isinstance(value, kind):
                    value = kind(value)
                if kind is float and isnan(value):
                    raise ValueError  # it would pass any limit
            except ValueError as error:
                raise typer.BadParameter(f"{value!r} is not a valid {_READERS[kind]}.") from error
            if problem := self._outside(value):
                raise typer.BadParameter(problem)
            return value

        return read

    def _problem(self, written: str, kind: type) -> str | None:
        """Return what keeps words from being a value of this kind at all."""
        if not written and (self.needs_value or kind is Path):
            return "it is empty; give a value."
        if kind is str and not self.any_bytes and not is_text(written):
            return f"{written!r} is not UTF-8 text."
        return None

    def _outside(self, value: Any) -> str | None:
        """Return which limit a number is beyond."""
        least, most = self.told.get("min"), self.told.get("max")
        if least is not None and value < least:
            return f"{value} must be at least {_shown(least)}."
        if most is not None and value > most:
            return f"{value} must be at most {_shown(most)}."
        return None


def _shown(limit: float) -> str:
    return str(limit) if isinstance(limit, int) else f"{limit:g}"


class Option(Parameter):
    """A parameter that is named."""


class Argument(Parameter):
    """A parameter that stands for itself."""


def _plain_type(annotation: Any) -> type | None:
    """Return the type of one value, None where Typer reads it itself."""
    for part in (annotation, *get_args(annotation)):
        for kind in (part, *get_args(part)):
            if kind in _READERS:
                return kind
    return None


_Class = TypeVar("_Class")


@dataclass_transform(frozen_default=True, kw_only_default=True)
def option_class(cls: type[_Class]) -> type[_Class]:
    """Make a dataclass of a command's options, given by name and never changed.

    Type checkers alone refuse changes; nobody compares options.
    """
    return dataclass(slots=True, kw_only=True, eq=False)(cls)
