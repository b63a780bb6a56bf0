"""Nothing of the project asks for CUDA when it is imported: MPS, ROCm and processors need none of it."""

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

def poisoned(name):
    def refuse(*args, **kwargs):
        frame = sys._getframe(1)
        caller = frame.f_globals.get("__name__", "")
        if caller.startswith(OURS):
            raise AssertionError(f"{caller} calls torch.cuda.{name} when it is imported")
        return original(*args, **kwargs)
    original = getattr(torch.cuda, name)
    return refuse

for name in sys.argv[2].split():
    setattr(torch.cuda, name, poisoned(name))

def modules(package):
    yield package
    for found in pkgutil.walk_packages(importlib.import_module(package).__path__, package + "."):
        yield found.name

number = 0
for package in sys.argv[1].split():
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
print(number)
"""
FUNCTIONS = (
    "init is_available device_count current_device current_stream default_stream set_device synchronize "
    "get_device_capability get_device_properties get_device_name mem_get_info graph_pool_handle"
)


def import_all(packages: str, path: Path = ROOT) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "ignore", "-c", POISON, packages, FUNCTIONS]
    return subprocess.run(command, capture_output=True, text=True, cwd=path)


def test_every_module_is_imported_without_a_call_of_cuda() -> None:
    run = import_all("kvchat benchmarks.gpu")
    assert run.returncode == 0, run.stderr[-2000:]
    assert int(run.stdout) > 200


def test_a_module_that_calls_cuda_when_imported_is_noticed(tmp_path: Path) -> None:
    package = tmp_path / "kvchat"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "eager.py").write_text("import torch\nDEVICES = torch.cuda.device_count()\n")
    run = import_all("kvchat", tmp_path)
    assert run.returncode != 0
    assert "kvchat.eager calls torch.cuda.device_count" in run.stderr
