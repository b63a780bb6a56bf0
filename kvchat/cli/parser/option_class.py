"""Decorator that makes a class of command options."""

from typing import Any, TypeVar, dataclass_transform

from kvchat.platform.values import dataclass


class Parameter:
    """What Typer is told of a parameter, once it is asked.

    Args:
        names: what is typed for it.
        told: what Typer's function of the same name takes besides.
    """

    def __init__(self, *names: str, **told: Any) -> None:
        self.names = names
        self.told = told

    def for_typer(self) -> Any:
        import typer

        return getattr(typer, type(self).__name__)(*self.names, **self.told)


class Option(Parameter):
    """A parameter that is named."""


class Argument(Parameter):
    """A parameter that stands for itself."""


_Class = TypeVar("_Class")


@dataclass_transform(frozen_default=True, kw_only_default=True)
def option_class(cls: type[_Class]) -> type[_Class]:
    """Make a dataclass of a command's options, given by name and never changed.

    Type checkers alone refuse changes; nobody compares options.
    """
    return dataclass(slots=True, kw_only=True, eq=False)(cls)
