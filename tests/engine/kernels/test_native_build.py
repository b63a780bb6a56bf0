"""The native kernels are never needed: without a compiler, or for other sources, torch computes the same."""

import os
import subprocess
import sys
from itertools import accumulate
from pathlib import Path

import pytest

from kvchat.engine.kernels.native.build import LEVELS, ROOT, find_compiler, library_path, machine, sources
from kvchat.engine.kernels.native.library import NOT_BUILT
from kvchat.engine.kernels.threads import usable_cores
from tests.engine.kernels import native_library

pytestmark = pytest.mark.cpu

ATTEND = """
import torch
from kvchat.engine.kernels.native import library
from kvchat.engine.kernels.paged_attention import paged_attention, prepare
from kvchat.engine.kernels.paged_attention.args import AttentionArgs, SequenceSpan
pool = torch.ones(2, 1, 16, 8)
spans = [SequenceSpan(0, 1, 16, 0, torch.tensor([0, 1]))]
args = AttentionArgs(spans, 1.0, prepared=prepare(spans, lambda position: 0))
print(paged_attention(torch.ones(1, 2, 8), pool, pool, args).sum().item(), library.why_not())
"""


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """Return a directory with kvchat as it is installed where nothing was compiled."""
    for path in (ROOT / "kvchat").rglob("*"):
        target = tmp_path / path.relative_to(ROOT)
        if path.is_file() and path.suffix in (".py", ".cpp", ".h"):
            target.parent.mkdir(parents=True, exist_ok=True)
            target.symlink_to(path)
    return tmp_path


def run(directory: Path, *command: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    variables = os.environ | {"PYTHONPATH": str(directory)} | environment
    return subprocess.run(
        [sys.executable, *command], cwd=directory, env=variables, capture_output=True, text=True, check=False
    )


def test_without_a_compiler_torch_computes_and_says_why(copy: Path) -> None:
    built = run(copy, "-m", "kvchat.engine.kernels.native.build", PATH="", CXX="")
    assert built.returncode == 1
    assert "no C++ compiler was found" in built.stderr
    assert "plain torch" in built.stderr
    attended = run(copy, "-c", ATTEND, PATH="")
    assert attended.stdout == f"16.0 {NOT_BUILT}\n", attended.stderr


def test_a_compiler_that_fails_leaves_nothing_behind(copy: Path) -> None:
    failing = copy / "failing"
    failing.write_text("#!/bin/sh\necho 'error: too old' >&2\nexit 1\n")
    failing.chmod(0o700)
    built = run(copy, "-m", "kvchat.engine.kernels.native.build", CXX=str(failing))
    assert built.returncode == 1
    assert "error: too old" in built.stderr
    native = copy / "kvchat/engine/kernels/native"
    assert not [path for path in native.iterdir() if path.suffix == ".so" or path.name.startswith(".build")]


@pytest.fixture
def noting(copy: Path) -> Path:
    """Return a compiler that compiles nothing and writes down in `calls` when it is at work."""
    compiler = copy / "noting"
    compiler.write_text(
        f"#!{sys.executable}\nimport os, sys, time\n"
        "log = open('calls', 'a', buffering=1)\n"
        "log.write('begun\\n')\ntime.sleep(0.05)\nlog.write('ended\\n')\n"
        "open(sys.argv[sys.argv.index('-o') + 1], 'w').close()\n"
    )
    compiler.chmod(0o700)
    return compiler


def most_at_once(calls: list[str]) -> int:
    return max(accumulate(1 if call == "begun" else -1 for call in calls))


def test_two_processes_compile_once_and_as_many_sources_at_once_as_there_are_processors(
    copy: Path, noting: Path
) -> None:
    command = [sys.executable, "-m", "kvchat.engine.kernels.native.build"]
    variables = os.environ | {"PYTHONPATH": str(copy), "CXX": str(noting)}
    builds = [subprocess.Popen(command, cwd=copy, env=variables) for _ in range(2)]
    assert [build.wait() for build in builds] == [0, 0]
    calls = (copy / "calls").read_text().split()
    cpp = [path for path in sources() if path.suffix == ".cpp"]
    num_levels = [1 if path.parent.name == "native" else len(LEVELS[machine()]) for path in cpp]
    assert calls.count("ended") == sum(num_levels) + len(["the library"])
    assert most_at_once(calls) <= usable_cores()


def test_a_damaged_library_is_not_used(copy: Path) -> None:
    (copy / "kvchat/engine/kernels/native" / library_path().name).write_bytes(b"no library")
    attended = run(copy, "-c", ATTEND)
    assert attended.stdout.startswith("16.0 they cannot be loaded: "), attended.stderr


@pytest.mark.skipif(find_compiler() is None, reason="there is no C++ compiler")
def test_a_library_serves_the_sources_that_it_was_made_from_alone(copy: Path) -> None:
    if native_library.compiled() is not None:
        pytest.skip("nothing could be compiled here")
    (copy / "kvchat/engine/kernels/native" / library_path().name).symlink_to(library_path())
    assert run(copy, "-c", ATTEND).stdout == "16.0 None\n"
    header = copy / "kvchat/engine/kernels/native/threads.h"
    text = header.read_text()
    header.unlink()
    header.write_text(text + "// changed\n")
    assert run(copy, "-c", ATTEND).stdout == f"16.0 {NOT_BUILT}\n"
