"""What is given to `kvchat import` and is no file of a conversation."""

import os

import pytest

from tests.cli.printed import run_program

pytestmark = pytest.mark.pure


@pytest.mark.parametrize("name", ["pipe.kvchat", "pipe.json"])
def test_a_pipe_that_nobody_writes_into_is_refused_and_not_waited_for(name: str) -> None:
    os.mkfifo(name)
    done = run_program("import", name)
    assert done.returncode == 7
    assert "not a regular file" in done.stderr
