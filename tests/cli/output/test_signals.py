"""The first signal stops gently, the second at once."""

import os
import signal
import subprocess
import sys

import pytest

from kvchat.cli.output.signals import StopRequested, StopSignals
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.pure


def test_a_signal_before_there_is_anything_to_stop_breaks_off() -> None:
    with StopSignals() as signals:
        with pytest.raises(StopRequested):
            signal.raise_signal(signal.SIGTERM)
        assert signals.exit_code == 143


def test_without_a_signal_there_is_no_exit_code_and_handlers_are_put_back() -> None:
    before = signal.getsignal(signal.SIGINT)
    with StopSignals() as signals:
        assert signal.getsignal(signal.SIGINT) != before
    assert signals.exit_code is None
    assert signal.getsignal(signal.SIGINT) is before


def test_the_second_signal_ends_the_process_at_once() -> None:
    program = (
        "import signal, time\n"
        "from kvchat.cli.output.signals import StopSignals\n"
        "with StopSignals() as signals:\n"
        "    signals.stop_with(lambda: print('stopping', flush=True))\n"
        "    print('ready', flush=True)\n"
        "    while True: time.sleep(0.01)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        os.kill(process.pid, signal.SIGINT)
        assert process.stdout.readline() == "stopping\n"
        os.kill(process.pid, signal.SIGINT)
        assert process.wait(timeout=PATIENCE_S) == 130
