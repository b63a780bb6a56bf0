"""Nothing of the project asks for CUDA when it is imported: MPS, ROCm and processors need none of it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.cpu

ROOT = Path(__file__).parent.parent

POISON = """
import importlib, pkgutil, sys
import torch, transformers

OURS = ("kvchat", "benchmarks.gpu")
FUNCTIONS = (
    "init is_available device_count current_device current_stream default_stream set_device synchronize "
    "get_device_capability get_device_properties get_device_name mem_get_info graph_pool_handle"
)

def poisoned(name):
    def refuse(*args, **kwargs):
        frame = sys._getframe(1)
        caller = frame.f_globals.get("__name__", "")
        if caller.startswith(OURS):
            raise AssertionError(f"{caller} calls torch.cuda.{name} when it is imported")
        return original(*args, **kwargs)
    original = getattr(torch.cuda, name)
    return refuse

for name in FUNCTIONS.split():
    setattr(torch.cuda, name, poisoned(name))

def modules(package):
    yield package
    for found in pkgutil.walk_packages(importlib.import_module(package).__path__, package + "."):
        yield found.name

for package in sys.argv[1:]:
    number = 0
    for name in modules(package):
        if name.endswith("__main__") or "native-" in name.rpartition(".")[2]:
            continue  # a library of native kernels is no module
        try:
            importlib.import_module(name)
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] in OURS[0]:
                raise
            continue  # an extra that is not installed
        number += 1
    print(number, flush=True)
"""


def test_every_module_is_imported_without_a_call_of_cuda_and_one_that_calls_it_is_noticed(
    tmp_path: Path,
) -> None:
    package = tmp_path / "kvchat_eager"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "eager.py").write_text("import torch\nDEVICES = torch.cuda.device_count()\n")
    command = [sys.executable, "-W", "ignore", "-c", POISON, "kvchat", "benchmarks.gpu", "kvchat_eager"]
    environ = os.environ | {"PYTHONPATH": str(tmp_path)}
    run = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environ)
    assert [int(number) > least for number, least in zip(run.stdout.split(), (200, 10), strict=True)] == [
        True,
        True,
    ], run.stderr[-2000:]
    assert "kvchat_eager.eager calls torch.cuda.device_count" in run.stderr
