"""Command lines run in this process, and what they print."""

import json
from typing import Any

import pytest

from kvchat.cli import main


class Run:
    """Runs command lines that begin with the same words."""

    def __init__(self, capsys: pytest.CaptureFixture[str], *first: str) -> None:
        self._capsys = capsys
        self._first = first

    def with_words(self, *words: str) -> "Run":
        """Return one whose command lines begin with these words too."""
        return Run(self._capsys, *self._first, *words)

    def __call__(self, *words: str) -> tuple[int, str, str]:
        """Return exit code, standard output and standard error."""
        self._capsys.readouterr()  # what the test itself has printed
        code = main.run((*self._first, *words))
        shown = self._capsys.readouterr()
        return code, shown.out, shown.err

    def out(self, *words: str, code: int = 0) -> str:
        """Return what stands on standard output behind a run that ends with this code."""
        found, out, err = self(*words)
        assert found == code, err
        return out

    def err(self, *words: str, code: int = 0) -> str:
        """Return what stands on standard error behind a run that ends with this code."""
        found, _, err = self(*words)
        assert found == code, err
        return err

    def lines(self, *words: str, code: int = 0) -> list[Any]:
        """Return the value that each line of standard output holds, as with `--ndjson`."""
        return [json.loads(line) for line in self.out(*words, code=code).splitlines()]

    def json(self, *words: str, code: int = 0) -> Any:
        """Return the value that is printed, or None of a run that prints nothing."""
        out = self.out(*words, "--json", code=code)
        return json.loads(out) if out else None
