"""What makes a class of a command's options."""

from dataclasses import dataclass
from typing import TypeVar, dataclass_transform

_Class = TypeVar("_Class")


@dataclass_transform(frozen_default=True, kw_only_default=True)
def option_class(cls: type[_Class]) -> type[_Class]:
    """Make a dataclass of a command's options, given by name and never changed.

    Nobody compares or prints options, and making the methods for that, and those that refuse changes, took
    part of the time in which a command starts. Type checkers refuse changes all the same.
    """
    return dataclass(slots=True, kw_only=True, eq=False, repr=False)(cls)
