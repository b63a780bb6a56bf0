"""What a table needs beside its figures: command, machine, versions, commit, and how busy it was."""

import os
import platform
import subprocess
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

PACKAGES = ("torch", "transformers")


def circumstances(scenario: str, *, quick: bool) -> str:
    """Return a few lines about the run that has just ended."""
    from kvchat.engine.kernels.machine_report import this_machine

    machine = this_machine()
    versions = [f"Python {platform.python_version()}", *(f"{name} {version(name)}" for name in PACKAGES)]
    load = ", ".join(f"{load:.1f}" for load in os.getloadavg())
    return "\n".join(
        [
            f"command   python -m benchmarks {scenario}{' --quick' if quick else ''}",
            f"machine   {machine.processor}, {machine.num_cores} of {os.cpu_count()} cores usable, "
            f"{machine.instructions}",
            f"versions  {', '.join(versions)}",
            f"commit    {_commit()}, {datetime.now(UTC):%Y-%m-%d}",
            f"load      {load} (1, 5 and 15 minutes)",
            "figures   median [smallest .. largest] over rounds",
        ]
    )


def _commit() -> str:
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    return ended.stdout.strip() or "unknown"
