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
from typing import Annotated, Any

from kvchat.cli.commands.ask.answer_writers import error_event
from kvchat.cli.output.signals import StopSignals
from kvchat.cli.output.streams import Output, Status, as_json, tell
from kvchat.cli.parser.options import ListOptions
from kvchat.cli.parser.typer_parameters import Argument, Option, option_class
from kvchat.errors import KvchatError, UsageError
from kvchat.platform.private_files import system_errors_as


@option_class
class BenchOptions(ListOptions):
    scenarios: Annotated[
        list[str] | None,
        Argument(
            help="What to measure, such as start or resume; all without any, but for cpu and gpu.",
            metavar="[SCENARIO]...",
            show_default=False,
        ),
    ] = None
    svg: Annotated[Path | None, Option(help="Draw a plot of each scenario there.", metavar="DIR")] = None
    quick: Annotated[bool, Option("--quick", help="Fewer rounds, where a scenario knows how.")] = False


PROGRAMS = {"cpu": ("--quick",), "gpu": ()}
"""Scenarios that are programs of their own, with those of our switches that they know."""

_MODULE = "benchmarks"
_PATIENCE_S = 10.0
_SIGNALLED = 128


def bench(options: BenchOptions) -> int:
    """Run scenarios and return the first exit code that is not 0.

    Raises: see `measure`; KvchatError: this kvchat does not run from its source tree.
    """
    return measure(options, source_tree(Path(__file__).parents[3]))


def measure(options: BenchOptions, tree: Path) -> int:
    """Run scenarios of a source tree in processes of their own; return the first exit code that is not 0.

    Raises:
        UsageError: a scenario is unknown, or its plots have no place.
        KvchatError: JSON was asked for, and a scenario failed.
    """
    given = list(dict.fromkeys(options.scenarios or ()))
    _require_known(given, tree)
    if not given:
        Status(quiet=options.quiet).note("all scenarios, which takes long; name some, or see --help")
    report: dict[str, object] = {}
    for module, words in _runs(given, options):
        code, found = _measured([module, *words], tree, as_json=as_json(options))
        if code:
            return _broken_off(code, as_json=as_json(options))
        report |= found if module == _MODULE else {module.rpartition(".")[2]: found}
    tell(options, report)
    return 0


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


def _require_known(names: Sequence[str], tree: Path) -> None:
    """Raise UsageError if a scenario is not there; the message names those that are."""
    files = (tree / "benchmarks").glob("*.py")
    measuring = [file.stem for file in files if "\ndef measure(" in file.read_text(encoding="utf-8")]
    here = {*measuring, *PROGRAMS}
    unknown = [name for name in names if name not in here]
    if unknown:
        raise UsageError(f"no scenario is called {', '.join(unknown)}; there are {', '.join(sorted(here))}")


def _runs(given: Sequence[str], options: BenchOptions) -> list[tuple[str, list[str]]]:
    """Return the modules to run, with their words: all scenarios in one process, each program in its own."""
    scenarios = [name for name in given if name not in PROGRAMS]
    programs = [name for name in given if name in PROGRAMS]
    quick = ["--quick"] if options.quick else []
    plots = [] if options.svg is None else ["--svg", str(_plot_dir(options.svg))]
    runs = [(_MODULE, [*scenarios, *quick, *plots])] if scenarios or not programs else []
    return runs + [
        (f"{_MODULE}.{name}", [word for word in quick if word in PROGRAMS[name]] + plots) for name in programs
    ]


def _measured(words: Sequence[str], tree: Path, *, as_json: bool) -> tuple[int, dict[str, object]]:
    """Run a module; return its exit code and, where a program is to read it, what it has found."""
    if not as_json:
        return _run(words, tree), {}
    with TemporaryDirectory() as directory:
        report = Path(directory) / "report.json"
        code = _run([*words, "--json", str(report)], tree, stdout=sys.stderr)
        return code, {} if code else json.loads(report.read_text())


def _broken_off(code: int, *, as_json: bool) -> int:
    """Return the exit code of what was not measured to its end; whoever reads JSON is told.

    Raises: KvchatError: JSON was asked for, and it was no signal that ended it.
    """
    if as_json and code < _SIGNALLED:
        raise KvchatError(f"a scenario ended with exit code {code}; its last words are above")
    if as_json:
        Output().json(error_event("interrupted", code))
    return code


def _plot_dir(directory: Path) -> Path:
    """Return a directory for plots from anywhere; it is made if it is not there.

    Raises: UsageError: it cannot be.
    """
    with system_errors_as(UsageError, f"cannot make {directory}"):
        directory.mkdir(parents=True, exist_ok=True)
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
        return signals.exit_code or (code if code >= 0 else _SIGNALLED - code)


def _end(process: "subprocess.Popen[bytes]") -> None:
    """End a process and the group that it leads, without mercy after a while."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(_PATIENCE_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
