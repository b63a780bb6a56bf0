"""Parameter descriptions of command options, without importing Typer."""

from typing import Any


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
