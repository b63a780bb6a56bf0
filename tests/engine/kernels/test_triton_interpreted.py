"""Every Triton kernel is its reference: proven without a GPU, under Triton's interpreter."""

import pytest

from tests.engine.kernels.interpreted import NEEDS_TRITON, assert_right

pytestmark = [pytest.mark.cpu, NEEDS_TRITON]


def test_a_kernel_equals_its_reference_and_what_reads_something_else_does_not() -> None:
    assert_right("run_interpreted")


@pytest.mark.slow
def test_a_kernel_equals_its_reference_in_all_other_cases() -> None:
    """What is left of a product of which the usual cases have all pairs."""
    assert_right("run_interpreted", "records in other parts", "records by bits in other parts")
