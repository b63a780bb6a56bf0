"""A kernel that fails or computes other numbers is not used again, and everybody is told once."""

import logging
from importlib.util import find_spec

import pytest
import torch

from kvchat.engine.kernels.bounds_checks import check_slots
from kvchat.engine.kernels.health import EVERY, Health
from kvchat.engine.kernels.kernel_checks import try_kernels
from kvchat.engine.kernels.paged_attention.step_tables import check_tables
from kvchat.engine.kernels.triton_support import why_unsupported
from tests.engine.kernels.attention_cases import tables_of

pytestmark = pytest.mark.cpu

CPU = torch.device("cpu")


def broken() -> int:
    raise RuntimeError("ptxas fatal: unknown target")


def no_memory() -> int:
    raise torch.OutOfMemoryError("tried to allocate 1 GiB")


def test_a_kernel_that_raises_is_replaced_and_refused_with_one_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    health = Health()
    with caplog.at_level(logging.WARNING):
        assert health.attempt("attention", broken, lambda: 7) == 7
        assert not health.is_well("attention")
        assert health.is_well("storing")
        health.refuse("attention", "again")
    (record,) = caplog.records
    assert "plain torch operations" in record.message
    assert "unknown target" in record.message


def test_a_kernel_without_memory_is_replaced_and_tried_again() -> None:
    health = Health()
    assert health.attempt("attention", no_memory, lambda: 7) == 7
    assert health.is_well("attention")


def failed() -> int:
    raise torch.AcceleratorError("illegal memory access")


def test_a_device_that_failed_is_not_trusted_any_more() -> None:
    with pytest.raises(torch.AcceleratorError):
        Health().attempt("attention", failed, lambda: 7)
    with pytest.raises(torch.AcceleratorError):
        try_kernels(CPU, torch.float32, {"attention": lambda *_: failed()}, Health())


def test_a_card_that_is_too_old_gets_no_kernel() -> None:
    health = Health()
    health.refuse(EVERY, "this GPU has compute capability 7.5")
    assert not health.is_well("attention")
    assert list(health.problems) == [EVERY]


@pytest.mark.parametrize(
    ("number", "capability", "hip", "words"),
    [
        (90, (7, 5), None, "capability 7.5, and they are made for 8.0 and newer"),
        (91, (9, 0), "6.4", "made for NVIDIA GPUs"),
        (92, (8, 0), None, None),
        (93, (12, 0), None, None),
    ],
)
def test_why_a_card_gets_no_kernel_is_known(
    number: int,
    capability: tuple[int, int],
    hip: str | None,
    words: str | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Asked of torch, which has none of these cards; each has a number of its own, as its answer is kept."""
    if words is None and find_spec("triton") is None:
        pytest.skip("Triton is there on Linux only")
    monkeypatch.setattr(torch.cuda, "get_device_capability", {number: capability}.__getitem__)
    monkeypatch.setattr(torch.version, "hip", hip)
    problem = why_unsupported(number)
    assert problem is None if words is None else words in str(problem)


@pytest.mark.parametrize(("error", "is_used"), [(1e-6, True), (0.5, False), (float("nan"), False)])
def test_a_kernel_is_used_if_its_numbers_are_those_of_its_definition(error: float, is_used: bool) -> None:
    health = Health()
    try_kernels(CPU, torch.float32, {"attention": lambda *_: error}, health)
    assert health.is_well("attention") == is_used


def test_a_kernel_that_fails_its_trial_is_not_used() -> None:
    health = Health()
    try_kernels(CPU, torch.float32, {"attention": lambda *_: broken(), "storing": lambda *_: 0.0}, health)
    assert list(health.problems) == ["attention"]


@pytest.mark.parametrize(
    ("slots", "words"), [([0, 5, 3, 99], None), ([0, -1], "negative"), ([4, 7, 4], "stored in slot 4")]
)
def test_slots_are_looked_at_before_a_launch(slots: list[int], words: str | None) -> None:
    pool = torch.empty(4, 2, 4, 1)
    if words is None:
        check_slots(torch.tensor(slots), pool)
        return
    with pytest.raises(AssertionError, match=words):
        check_slots(torch.tensor(slots), pool)


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ((1, 9, 0, [3, 0, 1]), None),
        ((0, 500, 0, [99, 99, 99]), None),  # no query reads it
        ((1, 9, 0, [3, 4, 1]), "sequence 0 has block 4; the pool has 4"),
        ((1, 9, 0, [3, -2, 1]), "block -2"),
        ((1, 12, 0, [3, 0, 1]), "a table of 3 blocks"),
        ((5, 9, 1, [3, 0, 1]), None),
        ((1, -1, 0, [3, 0, 1]), "from -1 on"),
    ],
)
def test_tables_are_looked_at_before_a_launch(
    row: tuple[int, int, int, list[int]], words: str | None
) -> None:
    tables = tables_of(*row)
    pool = torch.empty(4, 2, 4, 1)
    if words is None:
        check_tables(tables, pool)
        return
    with pytest.raises(AssertionError, match=words):
        check_tables(tables, pool)
