"""The real program in processes that need not import torch: one that has imported it forks them.

Importing takes most of the time of a short command. What is forked is a process of its own for whatever comes
after: files, locks, signals, kills and exit codes. The start itself is tested by `python -m kvchat`.
"""

import atexit
import json
import os
import random
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from importlib import import_module
from pathlib import Path
from select import select
from tempfile import TemporaryDirectory
from typing import IO, Any

from kvchat.engine.memory import rates
from kvchat.engine.tiering import persisted_rates
from tests.fork_request import LENGTH, ask

ROOT = Path(__file__).parents[1]
MODULES = (
    "torch",
    "transformers.models.qwen3.modeling_qwen3",
    "kvchat.cli.parser.command_line",
    "kvchat.cli.commands.ask.ask",
    "kvchat.engine.startup.assembly",
)
LONGEST_REQUEST = 2**20
LOADING_PAYS = "TESTS_LOADING_PAYS"
"""Variable with which a program begins as `let_loading_pay` says."""


class Forked:
    """A process as `subprocess.Popen` has it: standard output and standard error are pipes with text."""

    stdout: IO[str]
    stderr: IO[str]

    def __init__(self, pid: int, ended: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._ended = ended

    def __enter__(self) -> "Forked":
        return self

    def __exit__(self, *failure: object) -> None:
        if failure[0] is not None:
            self.kill()
        self.wait()
        for stream in (self.stdout, self.stderr):
            stream.close()

    def poll(self) -> int | None:
        return self._look(0)

    def wait(self, timeout: float | None = None) -> int:
        if self._look(timeout) is None:
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0)
        assert self.returncode is not None
        return self.returncode

    def communicate(self) -> tuple[str, str]:
        """Wait for its end and return what it printed; standard error takes what a pipe holds."""
        told = self.stdout.read(), self.stderr.read()
        self.wait()
        return told

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with suppress(ProcessLookupError):  # it has ended, and that is about to be told
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def _look(self, timeout: float | None) -> int | None:
        if self.returncode is None and select([self._ended], [], [], timeout)[0]:
            self.returncode = int(os.read(self._ended, LENGTH))
            os.close(self._ended)
        return self.returncode


class ForkServer:
    """Starts programs by forking one that waits for that, and has imported these modules."""

    def __init__(self, *modules: str) -> None:
        self._place = TemporaryDirectory(prefix="kvchat-forks-")
        self._address = f"{self._place.name}/asked"
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as asked:
            asked.bind(self._address)
            command = [sys.executable, "-m", "tests.fork_server", str(asked.fileno()), *(modules or MODULES)]
            self._process = subprocess.Popen(command, cwd=ROOT, pass_fds=[asked.fileno()])

    def start(self, *words: str, environ: Mapping[str, str] | None = None) -> Forked:
        """Run kvchat with nothing on standard input."""
        (stdout, out), (stderr, err) = os.pipe(), os.pipe()
        null = os.open(os.devnull, os.O_RDONLY)
        streams = (null, out, err)
        process = self.start_module("kvchat", words, os.environ if environ is None else environ, streams)
        for descriptor in streams:
            os.close(descriptor)
        process.stdout, process.stderr = (os.fdopen(one, encoding="utf-8") for one in (stdout, stderr))
        return process

    def start_module(
        self, module: str, words: Sequence[str], environ: Mapping[str, str], streams: Sequence[int]
    ) -> Forked:
        """Run a module with these standard streams."""
        return Forked(*ask(self._address, module, words, environ, streams))

    def run(
        self, *words: str, environ: Mapping[str, str] | None = None
    ) -> "subprocess.CompletedProcess[str]":
        with self.start(*words, environ=environ) as process:
            out, err = process.communicate()
            return subprocess.CompletedProcess(words, process.wait(), out, err)

    @property
    def python(self) -> Path:
        """What runs modules as Python does, and need not import what this has imported."""
        path = Path(self._place.name) / "python"
        request = ROOT / "tests" / "fork_request.py"
        path.write_text(f'#!/bin/sh\nexec {sys.executable} -IS {request} {self._address} "$@"\n')
        path.chmod(0o700)
        return path

    def close(self) -> None:
        self._process.terminate()
        self._process.wait()
        self._place.cleanup()


@cache
def interface_server() -> ForkServer:
    """What starts the scripted interface, as long as the tests run."""
    server = ForkServer("tests.ui.run_scripted")
    atexit.register(server.close)
    return server


def let_loading_pay() -> None:
    """Let computing be taken to need days until it is measured: beside the slow reads of a busy machine an
    engine would rightly compute what a test wants to see loaded. What one before it has measured is left
    where it lies.
    """
    rates.PRIOR_TOKEN_S = 1e5  # type: ignore[misc]
    persisted_rates.read_kept = lambda _: None


def serve(channel: socket.socket, modules: Sequence[str]) -> None:
    """Fork for whoever asks, as long as the tests run."""
    for name in modules:
        import_module(name)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # whoever waits for the program is waited for by nobody
    parent = os.getppid()
    channel.settimeout(1.0)
    while os.getppid() == parent:
        with suppress(TimeoutError):
            data, given, _, _ = socket.recv_fds(channel, LONGEST_REQUEST, 4)
            if os.fork() == 0:
                channel.close()
                _wait_for_program(json.loads(data), given)
            for descriptor in given:
                os.close(descriptor)


def _wait_for_program(request: dict[str, Any], given: Sequence[int]) -> None:
    """Fork the program, and write its number and, at its end, its exit status."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    *streams, end = given
    pid = os.fork()
    if pid == 0:
        os.close(end)
        _become_program(request, streams)
    for descriptor in streams:
        os.close(descriptor)
    os.write(end, f"{pid:>{LENGTH}}".encode())
    _, status = os.waitpid(pid, 0)
    os.write(end, f"{os.waitstatus_to_exitcode(status):>{LENGTH}}".encode())
    os._exit(0)


def _become_program(request: dict[str, Any], streams: Sequence[int]) -> None:
    code = 1
    try:
        for number, descriptor in enumerate(streams):
            os.dup2(descriptor, number)
            os.close(descriptor)
        sys.stdin = open(0, closefd=False)  # noqa: SIM115
        sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
        sys.stderr = open(2, "w", errors="backslashreplace", buffering=1, closefd=False)  # noqa: SIM115
        if os.isatty(0):
            os.setsid()
        os.chdir(request["cwd"])
        os.environ.clear()
        os.environ.update(request["environ"])
        random.seed()
        if LOADING_PAYS in os.environ:
            let_loading_pay()
        tempfile.tempdir = None  # as the variables say
        sys.argv = [request["module"], *request["words"]]
        runpy.run_module(request["module"], run_name="__main__")
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])), sys.argv[2:])
