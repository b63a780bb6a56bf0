"""The transcripts for scripts in README.md and docs/commands.md, run line by line by a shell."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.test_warm import environ_of, lending
from tests.fork_server import ForkServer

pytestmark = pytest.mark.cpu

ROOT = Path(__file__).parents[2]
BEGIN = "A test runs these lines:"


def transcript(text: str) -> list[tuple[str, str]]:
    """Return the commands of the section, each with what it prints."""
    section = text.partition(BEGIN)[2]
    section = re.split(r"^(?:\*\*|#)", section, maxsplit=1, flags=re.MULTILINE)[0]
    steps: list[tuple[str, str]] = []
    for line in section.splitlines():
        if line.startswith("    $ "):
            steps.append((line.removeprefix("    $ "), ""))
        elif line.startswith("    "):
            command, printed = steps[-1]
            steps[-1] = command, printed + line.removeprefix("    ") + "\n"
    return steps


@pytest.mark.parametrize(("page", "num_least"), [("README.md", 3), ("docs/commands.md", 11)])
def test_the_transcript_for_scripts_is_what_a_shell_prints(
    page: str, num_least: int, home: Path, tmp_path: Path, fork_server: ForkServer
) -> None:
    steps = transcript((ROOT / page).read_text())
    assert len(steps) >= num_least
    # An engine that is lent: that `ask` prints the same without one has a test of its own.
    environ = environ_of(home) | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    with lending(home, Path("starter"), fork_server):
        for command, printed in steps:
            done = subprocess.run(
                ["sh", "-c", command],
                capture_output=True,
                text=True,
                cwd=tmp_path,
                stdin=subprocess.DEVNULL,
                env=environ,
                check=False,
            )
            assert done.stdout == printed, command
