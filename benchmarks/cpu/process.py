"""An engine's process, as the benchmark talks to it."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


class EngineProcess:
    """Started, asked line by line, ended."""

    def __init__(
        self, engine: str, model: Path, settings: dict[str, Any], python: str = sys.executable
    ) -> None:
        """Args:
        engine: module under `benchmarks.cpu.engines`.

        Raises: OSError: it did not start; the message holds its last words.
        """
        self._process = subprocess.Popen(
            [python, "-m", "benchmarks.cpu.worker", engine, str(model), json.dumps(settings)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.description = self._answer()

    def ask(self, **order: Any) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):
                answer: dict[str, Any] = json.loads(line)
                return answer
        status = self._process.wait()
        assert self._process.stderr is not None
        words = self._process.stderr.read().strip().splitlines()
        raise OSError(f"it ended with {status}" + (f": {words[-1]}" if words else ""))
