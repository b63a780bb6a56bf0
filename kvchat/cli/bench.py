"""`kvchat bench`: the measurements of the source tree, each beside a peer or a bound, on this machine.

They are no part of the installed package: they need other engines, and minutes. This finds and runs them.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from kvchat.cli.bench_options import BenchOptions
from kvchat.cli.signals import StopSignals
from kvchat.cli.streams import Output, Status, as_json
from kvchat.errors import KvchatError, UsageError

PROGRAMS = {"cpu": ("--quick",), "gpu": ()}
"""Scenarios that are programs of their own, with those of our options that they take."""

_PATIENCE_S = 10.0
_SIGNALLED = 128


def bench(options: BenchOptions) -> int:
    """Run scenarios and return the first exit code that is not 0.

    Raises: see `measure`; KvchatError: this kvchat does not run from its source tree.
    """
    return measure(options, source_tree(Path(__file__).parents[2]))


def measure(options: BenchOptions, tree: Path) -> int:
    """Run scenarios of a source tree in processes of their own; return the first exit code that is not 0.

    Raises:
        UsageError: a scenario is unknown, or prints no JSON.
        KvchatError: JSON was asked for, and a scenario failed.
    """
    given = list(dict.fromkeys(options.scenarios or ()))
    programs = [name for name in given if name in PROGRAMS]
    scenarios = [name for name in given if name not in PROGRAMS]
    if as_json(options) and programs:
        raise UsageError(f"{' and '.join(programs)} print tables alone; leave out --json")
    _require_known(scenarios, tree)
    if not given:
        Status(quiet=options.quiet).note("all scenarios, which takes long; name some, or see --help")
    quick = ["--quick"] if options.quick else []
    plots = [] if options.svg is None else ["--svg", str(_plot_dir(options.svg))]
    first_code = 0
    if scenarios or not programs:
        first_code = _scenarios([*scenarios, *quick, *plots], tree, as_json=as_json(options))
    for name in programs:
        if first_code >= _SIGNALLED:
            break
        taken = [word for word in quick if word in PROGRAMS[name]]
        first_code = first_code or _run([f"benchmarks.{name}", *taken], tree)
    return first_code


def source_tree(root: Path) -> Path:
    """Return the source tree that this kvchat runs from.

    Raises: KvchatError: it runs from nowhere but its package.
    """
    if (root / "benchmarks" / "__main__.py").is_file() and (root / "pyproject.toml").is_file():
        return root
    raise KvchatError(
        "the measurements are in kvchat's source tree, not in the installed package; unpack its source "
        "(a source distribution has them too) and run `make bench` there"
    )


def _require_known(scenarios: Sequence[str], tree: Path) -> None:
    """See that every scenario is there.

    Raises: UsageError: one is not; the message names those that are.
    """
    here = _scenario_names(tree)
    unknown = [name for name in scenarios if name not in here]
    if unknown:
        names = ", ".join(sorted([*here, *PROGRAMS]))
        raise UsageError(f"no scenario is called {', '.join(unknown)}; there are {names}")


def _scenario_names(tree: Path) -> list[str]:
    """Return the names of the modules that measure something."""
    files = sorted((tree / "benchmarks").glob("*.py"))
    return [file.stem for file in files if "\ndef measure(" in file.read_text(encoding="utf-8")]


def _scenarios(words: Sequence[str], tree: Path, *, as_json: bool) -> int:
    if not as_json:
        return _run(["benchmarks", *words], tree)
    with TemporaryDirectory() as directory:
        report = Path(directory) / "report.json"
        code = _run(["benchmarks", *words, "--json", str(report)], tree, stdout=sys.stderr)
        if code:
            raise KvchatError(f"a scenario ended with exit code {code}; its last words are above")
        Output().json(json.loads(report.read_text()))
    return 0


def _plot_dir(directory: Path) -> Path:
    """Return a directory for plots from anywhere; it is made if it is not there.

    Raises: UsageError: it cannot be.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"cannot make {directory}: {error.strerror or error}") from error
    return directory.absolute()


def _run(words: Sequence[str], tree: Path, stdout: Any = None) -> int:
    """Run a module to its end; a signal ends it with all that it has started."""
    command = [sys.executable, "-m", *words]
    with (
        StopSignals() as signals,
        subprocess.Popen(command, cwd=tree, stdout=stdout, process_group=0) as process,
    ):
        signals.stop_with(partial(_end, process))
        code = process.wait()
        return signals.exit_code or code


def _end(process: "subprocess.Popen[bytes]") -> None:
    """End a process and the group that it leads, without mercy after a while."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(_PATIENCE_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
