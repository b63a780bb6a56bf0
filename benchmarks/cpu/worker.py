"""One engine in a process of its own: loads a model, then does what standard input says, one JSON line each.

`{"do": "prefill", "length": N}` computes N tokens from nothing and keeps the state. `{"do": "decode",
"length": N, "tokens": K, "batch": B}` decodes K tokens behind the kept state of N, which stays as it was.
Answers are lines with the seconds and the greatest resident size so far.
"""

import json
import sys
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol


class Engine(Protocol):
    """What every engine can do. Times are those of computing alone."""

    def prefill(self, token_ids: list[int]) -> float:
        """Compute a prompt from nothing, logits of its last token included; keep the state. Seconds."""
        ...

    def decode(self, length: int, num_tokens: int, batch: int) -> float:
        """Decode greedily behind the kept state of `length` tokens, which stays. Seconds for all steps."""
        ...

    def describe(self) -> dict[str, Any]:
        """Versions and settings that matter."""
        ...


def prompt(length: int, vocab_size: int) -> list[int]:
    return [3 + 7919 * position % (vocab_size - 3) for position in range(length)]


def main() -> int:
    name, model, settings = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
    engine: Engine = import_module(f"benchmarks.cpu.engines.{name}").open_engine(model, settings)
    _say({"ready": True, **engine.describe()})
    for line in sys.stdin:
        order = json.loads(line)
        try:
            _say({"seconds": _obey(engine, order, settings["vocab_size"])})
        except NotImplementedError as error:
            _say({"cannot": str(error)})
    return 0


def _obey(engine: Engine, order: dict[str, Any], vocab_size: int) -> float:
    if order["do"] == "prefill":
        return engine.prefill(prompt(order["length"], vocab_size))
    return engine.decode(order["length"], order["tokens"], order["batch"])


def _say(answer: dict[str, Any]) -> None:
    print("\n" + json.dumps(answer | {"peak_bytes": _peak_bytes()}), flush=True)


def _peak_bytes() -> int:
    """Return the greatest resident size of this process alone; `getrusage` counts its parent's too."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))


if __name__ == "__main__":
    raise SystemExit(main())
