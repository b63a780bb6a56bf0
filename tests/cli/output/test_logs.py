"""The log is for its owner alone, and never grows without end."""

import stat
from pathlib import Path

import pytest

from tests.cli.printed import run_python

pytestmark = pytest.mark.pure


def test_the_log_and_its_rotated_files_are_private_and_bounded(home: Path) -> None:
    program = (
        "import logging\n"
        "from kvchat.cli.output.logs import start_log\n"
        "from kvchat.app.config import read_settings\n"
        "start_log(read_settings().paths)\n"
        "for _ in range(4000):\n"
        "    logging.getLogger('kvchat.test').info('x' * 1000)\n"
    )
    assert run_python(program).returncode == 0
    files = list((home / "state").iterdir())
    assert len(files) == 3
    assert sum(file.stat().st_size for file in files) < 4 << 20
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}
    assert stat.S_IMODE((home / "state").stat().st_mode) == 0o700
