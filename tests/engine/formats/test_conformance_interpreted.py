"""Formats keep their promises by Triton's kernels too, which its interpreter runs in a process of its own."""

import pytest

from tests.engine.formats.conformance import Promises
from tests.engine.formats.test_conformance import ROWS
from tests.engine.kernels.interpreted import NEEDS_TRITON, assert_tests_pass

pytestmark = [pytest.mark.cpu, NEEDS_TRITON]
PROMISES = [name for name in vars(Promises) if name.startswith("test_")]


@pytest.mark.slow
@pytest.mark.parametrize("row", ROWS)
def test_every_promise_is_kept(row: str) -> None:
    """Minutes each. Every run has the kernels one by one, and an engine on shadows, in `run_interpreted*`."""
    nodes = [f"tests/engine/formats/test_conformance.py::TestFormats::{name}[{row}]" for name in PROMISES]
    assert_tests_pass(*nodes)
