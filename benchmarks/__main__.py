"""Measurements on this machine: `python -m benchmarks [SCENARIO...] [--quick] [--save] [--json FILE]
[--svg DIR]`.

`resume` and `recurrent` also measure llama.cpp where `--llama-cpp PYTHON` names an interpreter that has
`llama-cpp-python` and `gguf`.

Each scenario measures what it claims beside a peer or a bound in the same run, in several rounds, and reports
medians with their spread. Machines are noisy: compare the ratios.
"""

import argparse
import json
import platform
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from inspect import signature
from pathlib import Path
from types import ModuleType

from benchmarks.circumstances import circumstances
from benchmarks.row_plot import row_plot
from benchmarks.table import NothingHere, Row, render
from kvchat.errors import ConfigError

RESULTS = Path(__file__).parent / "results"

SCENARIOS = (
    "basics",
    "bookkeeping",
    "cache_formats",
    "commands",
    "concurrency",
    "converting",
    "decode",
    "encryption",
    "eviction",
    "fork",
    "fused",
    "interface",
    "interleave",
    "latent",
    "meet",
    "native",
    "recurrent",
    "resume",
    "saving",
    "slots",
    "speculation",
    "start",
    "state_walks",
    "store",
    "switch",
    "weights",
)


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Measurements on this machine.")
    parser.add_argument("scenarios", nargs="*", metavar="SCENARIO", help=f"any of: {', '.join(SCENARIOS)}")
    parser.add_argument("--quick", action="store_true", help="fewer rounds, where a scenario knows how")
    parser.add_argument("--save", action="store_true", help=f"write each table to {RESULTS.name}/ too")
    parser.add_argument(
        "--llama-cpp",
        type=Path,
        metavar="PYTHON",
        help="interpreter with llama-cpp-python and gguf, as a peer",
    )
    parser.add_argument(
        "--openvino", type=Path, metavar="PYTHON", help="interpreter with optimum-intel, as a peer"
    )
    parser.add_argument("--json", type=Path, help="write the figures to this file too")
    parser.add_argument("--svg", type=Path, metavar="DIR", help="draw a plot of each scenario there")
    arguments = parser.parse_args(words)
    unknown = set(arguments.scenarios) - set(SCENARIOS)
    if unknown:
        parser.error(f"unknown scenario {', '.join(sorted(unknown))}; choose from {', '.join(SCENARIOS)}")
    if arguments.svg is not None:
        arguments.svg.mkdir(parents=True, exist_ok=True)
    report = Report()
    for name in arguments.scenarios or SCENARIOS:
        _run(name, arguments, report)
        if arguments.json:  # a long run that is broken off keeps what it has measured
            arguments.json.write_text(json.dumps(report.as_dict(), indent=1))
    return 0 if report.rows else 1


@dataclass(slots=True)
class Report:
    """What was measured, by scenario, and why what was not."""

    rows: dict[str, list[Row]] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)

    def as_dict(self) -> dict[str, object]:
        """Return it as JSON has it: figures one after the other, each with its scenario."""
        rows = [{"scenario": name} | row.as_dict() for name, rows in self.rows.items() for row in rows]
        machine = platform.processor() or platform.machine()
        about = {"python": sys.version.split()[0], "machine": machine, "left_out": self.left_out}
        return about | {"rows": rows}


def _run(name: str, arguments: argparse.Namespace, report: Report) -> None:
    """Run a scenario, tell and draw what it finds, and note it; it may have nothing to measure here."""
    try:
        scenario = import_module(f"benchmarks.{name}")
        title = f"{name}: {(scenario.__doc__ or '').splitlines()[0]}"
        print(f"\n{title}", flush=True)
        options = {
            "quick": arguments.quick,
            "llama_cpp": arguments.llama_cpp,
            "openvino": arguments.openvino,
            "svg_dir": RESULTS if arguments.save else arguments.svg,
        }
        measured = _measure(scenario, options)
    except (NothingHere, ModuleNotFoundError, ConfigError) as reason:
        report.left_out[name] = _why(reason)
        print(f"  {name} is left out: {report.left_out[name]}", flush=True)
        return
    print(render(measured), flush=True)
    report.rows[name] = measured
    if arguments.svg is not None:
        draw(name, scenario, measured, arguments.svg)
    if arguments.save:
        text = f"{title}\n\n{circumstances(name, quick=arguments.quick)}\n\n{render(measured)}\n"
        (RESULTS / f"{name}.txt").write_text(text)


def _why(reason: NothingHere | ModuleNotFoundError | ConfigError) -> str:
    """Return why a scenario is left out.

    Raises: ModuleNotFoundError: what is missing is ours.
    """
    if not isinstance(reason, ModuleNotFoundError):
        return str(reason)
    if (reason.name or "").partition(".")[0] in ("kvchat", "benchmarks"):
        raise reason
    return f"{reason.name} is not installed"


def draw(name: str, scenario: ModuleType, rows: Sequence[Row], directory: Path) -> None:
    """Draw all figures of a scenario that has no plot of its own."""
    if "svg_dir" not in signature(scenario.measure).parameters:
        words = (scenario.__doc__ or "").splitlines()[0].rstrip(".")
        (directory / f"{name}.svg").write_text(row_plot(f"{name}: {words}", rows))


def _measure(scenario: ModuleType, options: Mapping[str, object]) -> list[Row]:
    """Run a scenario with those options that it knows."""
    known = signature(scenario.measure).parameters
    rows: list[Row] = scenario.measure(**{name: value for name, value in options.items() if name in known})
    return rows


if __name__ == "__main__":
    raise SystemExit(main())
