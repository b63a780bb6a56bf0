"""Calls that wait until a test lets them go on."""

from collections.abc import Callable
from threading import Event
from typing import Any, ParamSpec, TypeVar

from tests.patience import PATIENCE_S

HELD_S = 2 * PATIENCE_S
"""Longer than any test holds a call, however busy the machine is."""

P = ParamSpec("P")
T = TypeVar("T")


class Gate:
    """Holds calls that are made in other threads.

    Attributes:
        reached: set once a call has come here.
    """

    def __init__(self) -> None:
        self.reached = Event()
        self._is_open = Event()

    def before(self, call: Callable[P, T]) -> Callable[P, T]:
        """Return what waits here and then does what a call does."""

        def late(*args: P.args, **kwargs: P.kwargs) -> T:
            self.reached.set()
            self._is_open.wait(HELD_S)
            return call(*args, **kwargs)

        return late

    def open(self) -> None:
        self._is_open.set()


def hold(owner: Any, name: str) -> Gate:
    """Let a method wait at the gate that is returned."""
    gate = Gate()
    setattr(owner, name, gate.before(getattr(owner, name)))
    return gate
