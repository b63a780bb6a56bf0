"""Decorator that makes a class of command options."""

from typing import TypeVar, dataclass_transform

from kvchat.platform.values import dataclass

_Class = TypeVar("_Class")


@dataclass_transform(frozen_default=True, kw_only_default=True)
def option_class(cls: type[_Class]) -> type[_Class]:
    """Make a dataclass of a command's options, given by name and never changed.

    Type checkers alone refuse changes; nobody compares options.
    """
    return dataclass(slots=True, kw_only=True, eq=False)(cls)
