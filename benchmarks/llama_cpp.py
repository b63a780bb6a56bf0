"""llama.cpp as a peer: a process of another interpreter that restores a saved state when it is told to."""

import subprocess
from pathlib import Path
from types import TracebackType

SCRIPT = Path(__file__).parent / "peers" / "restore_state.py"


class LlamaCpp:
    """A running peer; leaving the `with` ends it.

    Attributes:
        files: what it restores, by the way in which it does.
        num_bytes: of keys and values in it.
    """

    def __init__(self, python: Path, directory: Path, num_tokens: int) -> None:
        """Start the peer and wait until it has filled its cache and saved it.

        Raises: RuntimeError: it did not start; the packages it needs may be missing.
        """
        self.files = {"file": directory / "state", "bytes": directory / "bytes"}
        self._process = subprocess.Popen(
            [python, SCRIPT, directory, str(num_tokens)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self.num_bytes = int(self._answer())

    def __enter__(self) -> "LlamaCpp":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.communicate("")

    def restore_s(self, way: str) -> float:
        """Return the seconds of one restore, as the peer has measured them. `way`: one of `files`."""
        assert self._process.stdin is not None
        print(way, file=self._process.stdin, flush=True)
        return float(self._answer())

    def _answer(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the peer ended with {self._process.wait()}")
        return line
