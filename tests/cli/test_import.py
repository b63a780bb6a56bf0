"""What is given to `kvchat import` and is no file of a conversation."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.patience import PATIENCE_S

pytestmark = pytest.mark.pure


@pytest.mark.parametrize("name", ["pipe.kvchat", "pipe.json"])
def test_a_pipe_that_nobody_writes_into_is_refused_and_not_waited_for(name: str, home: Path) -> None:
    os.mkfifo(name)
    command = [sys.executable, "-m", "kvchat", "import", name]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 7
    assert "not a regular file" in done.stderr
