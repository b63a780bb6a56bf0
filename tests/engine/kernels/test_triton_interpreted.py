"""Every Triton kernel is its reference: proven without a GPU, under Triton's interpreter."""

import json
import subprocess
import sys
from importlib.util import find_spec

import pytest

from tests.engine.kernels.interpreted_cases import ATTENTION_CASES, CONTROLS, OTHER_CASES

pytestmark = [
    pytest.mark.cpu,
    pytest.mark.skipif(find_spec("triton") is None, reason="Triton is there on Linux only"),
]
CASES = (*ATTENTION_CASES, *OTHER_CASES)


@pytest.fixture(scope="module")
def errors() -> dict[str, float]:
    """Return each case's error as a multiple of what is allowed."""
    command = [sys.executable, "-m", "tests.engine.kernels.run_interpreted", *CASES, *CONTROLS]
    run = subprocess.run(command, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr[-4000:]
    lines = [json.loads(line) for line in run.stdout.splitlines()]
    return {line["case"]: line["error"] for line in lines}


@pytest.mark.parametrize("case", CASES)
def test_a_kernel_equals_its_reference(errors: dict[str, float], case: str) -> None:
    assert errors[case] <= 1


@pytest.mark.parametrize("control", CONTROLS)
def test_a_kernel_that_reads_something_else_is_noticed(errors: dict[str, float], control: str) -> None:
    assert not errors[control] <= 1
