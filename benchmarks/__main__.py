"""Measurements on this machine: `python -m benchmarks [SCENARIO...] [--json FILE]`.

Each scenario measures what it claims beside a peer or a bound in the same run, in several rounds, and reports
medians with their spread. Machines are noisy: compare the ratios.
"""

import argparse
import json
import platform
import sys
from importlib import import_module
from pathlib import Path

from benchmarks.table import Row, render

SCENARIOS = (
    "bookkeeping",
    "concurrency",
    "decode",
    "eviction",
    "interleave",
    "latent",
    "resume",
    "slots",
    "store",
)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Measurements on this machine.")
    parser.add_argument("scenarios", nargs="*", metavar="SCENARIO", help=f"any of: {', '.join(SCENARIOS)}")
    parser.add_argument("--json", type=Path, help="write the figures to this file too")
    arguments = parser.parse_args()
    unknown = set(arguments.scenarios) - set(SCENARIOS)
    if unknown:
        parser.error(f"unknown scenario {', '.join(sorted(unknown))}; choose from {', '.join(SCENARIOS)}")
    rows: list[Row] = []
    for name in arguments.scenarios or SCENARIOS:
        print(f"\n{name}: {import_module(f'benchmarks.{name}').__doc__.splitlines()[0]}", flush=True)
        measured = import_module(f"benchmarks.{name}").measure()
        print(render(measured), flush=True)
        rows += measured
    if arguments.json:
        report = {"python": sys.version.split()[0], "machine": platform.processor() or platform.machine()}
        arguments.json.write_text(json.dumps(report | {"rows": [row.as_dict() for row in rows]}, indent=1))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
