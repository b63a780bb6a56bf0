"""A real file system that is full, or becomes read-only: every refusal is told, and loses nothing."""

import re
import subprocess
import sys
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp

import pytest

pytestmark = [pytest.mark.pure, pytest.mark.long]

ROOT = Path(__file__).parent.parent
MOUNT = 'mount -t tmpfs -o size=16m kvchat "$2" && exec "$0" -m tests.small_disk_child "$1" "$2"'


def run(*command: object) -> str:
    done = subprocess.run([*map(str, command)], cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def own_namespace(place: Path) -> list[str]:
    """Return what a command begins with that mounts a file system for itself; skip where none may."""
    namespace = ["unshare", "--user", "--map-root-user", "--mount"]
    try:
        tried = subprocess.run([*namespace, "mount", "-t", "tmpfs", "kvchat", place], capture_output=True)
    except FileNotFoundError:
        pytest.skip("there is no unshare here")
    if tried.returncode != 0:
        pytest.skip("this system gives nobody a file system of his own")
    return namespace


def least(said: str) -> int:
    """Return the least of the counts that a child has told."""
    counts = re.fullmatch(r"(\d+) refusals, (\d+) turns, (\d+) blocks", said)
    assert counts is not None, said
    return min(map(int, counts.groups()))


def test_a_full_disk_is_told_at_every_write_and_loses_nothing(tmp_path: Path) -> None:
    """Trap 25: sessions, blocks and an export, with every number of pages left, and then with enough."""
    command = (sys.executable, "fill", tmp_path)
    assert least(run(*own_namespace(tmp_path), "sh", "-c", MOUNT, *command)) > 0


def test_a_directory_that_becomes_read_only_is_told_and_loses_nothing() -> None:
    place = Path(mkdtemp(prefix="kvchat-read-only-"))  # one that others may enter
    try:
        assert least(run(sys.executable, "-m", "tests.small_disk_child", "read-only", place)) > 0
    finally:
        rmtree(place)
