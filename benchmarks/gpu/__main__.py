"""The GPU path on this machine: `python -m benchmarks.gpu [--dry-run] [--only PART...] [--json FILE]
[--svg DIR]`.

Checks every kernel against its definition on fresh numbers, then prints what operations and whole models
achieve beside ceilings measured in the same run, and writes everything to `benchmarks/results/`. Needs torch,
triton and transformers, no network and no installation. Ends with code 2 where there is no GPU; `--dry-run`
runs the same code with tiny sizes on the processor, its kernels under Triton's interpreter (minutes) or with
`--plain` left out, and its figures mean nothing.
"""

import argparse
import json
import os
import platform
import random
import subprocess
import sys
import warnings
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING

from benchmarks.row_plot import row_plot
from benchmarks.table import Row

if TYPE_CHECKING:
    from benchmarks.gpu.parts import Outcome, Part

RESULTS = Path(__file__).parent.parent / "results"
SVG_NAME = "gpu.svg"
PACKAGES = ("torch", "triton", "transformers", "numpy")
NO_GPU = 2


def main(words: list[str] | None = None) -> int:
    arguments = _arguments(words)
    if arguments.dry_run and not arguments.plain:
        os.environ["TRITON_INTERPRET"] = "1"  # chosen when Triton is imported
        warnings.simplefilter("ignore")  # numpy's, about the infinities of keys that nobody sees
    import torch

    if not arguments.dry_run and not torch.cuda.is_available():
        print(f"there is no GPU that torch {torch.__version__} can use; --dry-run runs without one")
        return NO_GPU
    return _run(arguments)


def _arguments(words: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description="The GPU path here.")
    parser.add_argument("--dry-run", action="store_true", help="tiny sizes on the processor; no figures")
    parser.add_argument("--plain", action="store_true", help="the same without kernels, in seconds")
    parser.add_argument("--only", nargs="*", metavar="PART", help="parts to run, by a piece of their names")
    parser.add_argument("--minutes", type=float, default=7.5, help="when to begin no further part")
    parser.add_argument("--json", type=Path, help="file for the figures; by default in benchmarks/results")
    parser.add_argument("--svg", type=Path, metavar="DIR", help="draw the figures there")
    return parser.parse_args(words)


def _run(arguments: argparse.Namespace) -> int:
    import torch

    from benchmarks.gpu.compiling import compile_beside
    from benchmarks.gpu.parts import run_parts
    from benchmarks.gpu.stage import Stage

    start_s = perf_counter()
    parts = _parts(arguments.only)
    stage = Stage(
        device=torch.device("cpu" if arguments.dry_run else "cuda"),
        is_dry=arguments.dry_run,
        deadline_s=start_s + 60 * arguments.minutes,
        seed=random.SystemRandom().randrange(2**40),
    )
    print(f"{_machine()}, seed {stage.seed}", flush=True)
    path = arguments.json or RESULTS / ("gpu-dry.json" if stage.is_dry else "gpu.json")
    about = {
        "machine": _machine(),
        "versions": _versions(),
        "commit": _commit(),
        "date": f"{datetime.now(UTC):%Y-%m-%d %H:%M}",
        "is_dry": stage.is_dry,
    }

    def keep(outcomes: "Sequence[Outcome]") -> None:
        seconds = round(perf_counter() - start_s, 1)
        report = about | {"seconds": seconds, "parts": [asdict(outcome) for outcome in outcomes]}
        path.write_text(json.dumps(report, indent=1))

    def tell(text: str) -> None:
        print(text, flush=True)

    if not stage.is_dry and not arguments.only:
        compile_beside(tell)
    outcomes = run_parts(parts, stage, tell, keep)
    if arguments.svg is not None:
        arguments.svg.mkdir(parents=True, exist_ok=True)
        (arguments.svg / SVG_NAME).write_text(row_plot(f"gpu: {_machine()}", _rows(outcomes)))
    failed = [outcome.name for outcome in outcomes if outcome.problem]
    problems = f"; with problems: {', '.join(failed)}" if failed else ""
    print(f"\n{perf_counter() - start_s:.1f} s, written to {path}{problems}")
    return 1 if failed else 0


def _rows(outcomes: "Sequence[Outcome]") -> list[Row]:
    """Return the figures of all parts as a plot takes them."""
    return [
        Row(name=figure.name, unit=figure.unit, median=figure.value, low=figure.low, high=figure.high)
        for outcome in outcomes
        for figure in outcome.figures
    ]


def _parts(only: Sequence[str] | None) -> "list[Part]":
    """Return what is measured, in this order."""
    from benchmarks.gpu import ceilings, checks, end_to_end, operations, saves, shadow
    from benchmarks.gpu.parts import Part

    parts = [
        Part(name="ceilings", run=ceilings.measure),
        Part(name="kernels and their definitions", run=checks.measure),
        Part(name="decode attention", run=operations.decode_attention),
        Part(name="prefill attention", run=operations.prefill_attention),
        Part(name="latent attention", run=operations.latent_decode),
        Part(name="quantised decode", run=operations.quantized_decode),
        Part(name="block moves", run=operations.block_moves),
        Part(name="storing", run=operations.store),
        Part(name="host transfers", run=operations.host_transfers),
        Part(name="saving", run=saves.saving),
        Part(name="shadows", run=shadow.shadows, least_s=60, usual_s=60),
        Part(name="model of 1B", run=end_to_end.one_b, least_s=40, usual_s=120),
        Part(name="model of 8B", run=end_to_end.eight_b, least_s=60, usual_s=120),
    ]
    return [part for part in parts if not only or any(word in part.name for word in only)]


def _machine() -> str:
    import torch

    if not torch.cuda.is_available():
        return f"{platform.machine()}, no GPU"
    capability = ".".join(map(str, torch.cuda.get_device_capability()))
    num_bytes = torch.cuda.get_device_properties(0).total_memory
    return f"{torch.cuda.get_device_name()}, compute capability {capability}, {num_bytes / 2**30:.0f} GiB"


def _versions() -> dict[str, str]:
    import torch

    known = {"python": platform.python_version(), "cuda": str(torch.version.cuda)}
    for package in PACKAGES:
        try:
            known[package] = version(package)
        except PackageNotFoundError:
            known[package] = "not installed"
    return known


def _commit() -> str:
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty"]
    try:
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:
        return "unknown"
    return ended.stdout.strip() or "unknown"


if __name__ == "__main__":
    sys.exit(main())
