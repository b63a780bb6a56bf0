"""Every Triton kernel is its reference: proven without a GPU, under Triton's interpreter."""

from importlib.util import find_spec

import pytest

from tests.engine.kernels.interpreted import errors_of
from tests.engine.kernels.interpreted_cases import ATTENTION_CASES, CONTROLS, OTHER_CASES, SLOW_CASES

pytestmark = [
    pytest.mark.cpu,
    pytest.mark.skipif(find_spec("triton") is None, reason="Triton is there on Linux only"),
]
CASES = (*ATTENTION_CASES, *OTHER_CASES)


@pytest.fixture(scope="module")
def errors() -> dict[str, float]:
    """Return each case's error as a multiple of what is allowed."""
    return errors_of("run_interpreted", (*CASES, *CONTROLS))


@pytest.mark.parametrize("case", CASES)
def test_a_kernel_equals_its_reference(errors: dict[str, float], case: str) -> None:
    assert errors[case] <= 1


@pytest.mark.parametrize("control", CONTROLS)
def test_a_kernel_that_reads_something_else_is_noticed(errors: dict[str, float], control: str) -> None:
    assert not errors[control] <= 1


@pytest.mark.slow
def test_a_kernel_equals_its_reference_in_all_other_cases() -> None:
    errors = errors_of("run_interpreted", SLOW_CASES)
    assert [case for case in SLOW_CASES if not errors[case] <= 1] == []
