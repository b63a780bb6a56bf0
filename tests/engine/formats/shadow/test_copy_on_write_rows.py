"""Rows that sequences share and budgets that hold."""

import pytest
import torch

from kvchat.engine.formats.shadow.copy_on_write_rows import Budget, RowPage, Rows
from kvchat.errors import OutOfMemory
from tests.engine.formats.shadow.contexts import randn

pytestmark = pytest.mark.cpu


def test_rows_are_what_was_added_however_often_and_however_many() -> None:
    data, rows = randn(1000, 3), Rows((3,), torch.float32, Budget("device"))
    start = 0
    for size in (0, 130, 1, 1, 62, 64, 65, 200, 477):
        rows.append(data[start : start + size])
        start += size
    assert len(rows) == 1000
    assert torch.equal(rows.all(), data)
    numbers = torch.randperm(1000, generator=torch.Generator().manual_seed(0))[:300]
    assert torch.equal(rows.take(numbers), data[numbers])
    rows.truncate(131)
    assert torch.equal(rows.all(), data[:131])
    rows.append(data[:9])
    assert torch.equal(rows.all(), torch.cat((data[:131], data[:9])))


def test_two_sequences_add_rows_of_their_own_behind_those_they_share() -> None:
    """Trap 11: the page is copied before the first write, and large pages that are full never are."""
    data, budget = randn(600, 3), Budget("device")
    first = Rows((3,), torch.float32, budget)
    first.append(data[:500])
    first.append(data[500:510])
    before = budget.used_bytes
    second = first.fork()
    assert budget.used_bytes == before
    first.append(data[510:520])
    second.append(data[530:600])
    assert torch.equal(first.all(), data[:520])
    assert torch.equal(second.all(), torch.cat((data[:510], data[530:600])))
    assert second.pages[0] is first.pages[0]
    first.release()
    assert torch.equal(second.all(), torch.cat((data[:510], data[530:600])))
    second.release()
    assert budget.used_bytes == 0


def test_a_budget_is_what_is_allocated() -> None:
    budget = Budget("device")
    rows = Rows((3,), torch.float32, budget)
    for size in (300, 1, 70):
        rows.append(randn(size, 3))
        assert budget.used_bytes == sum(page.data.untyped_storage().nbytes() for page in rows.pages)


def test_what_cannot_be_allocated_or_written_is_not_counted() -> None:
    budget = Budget("device")
    with pytest.raises(RuntimeError, match="memory"):
        RowPage(2**50, torch.empty(0, 3), budget)
    assert budget.used_bytes == 0
    rows = Rows((3,), torch.float32, budget)
    with pytest.raises(RuntimeError, match="size"):
        rows.append(randn(70, 4))
    rows.release()
    assert budget.used_bytes == 0


def test_what_a_budget_does_not_hold_is_refused_with_the_numbers_and_nothing_changes() -> None:
    """Trap 12."""
    budget = Budget("host", 2**20)
    rows = Rows((1024,), torch.float32, budget)
    rows.append(randn(200, 1024))
    sequence = rows.fork()
    with pytest.raises(OutOfMemory, match=r"0\.4 MiB of host memory, and 0\.2 of 1\.0 are left"):
        sequence.append(randn(100, 1024))
    assert len(sequence) == len(rows) == 200
    sequence.release()
    rows.release()
    assert budget.used_bytes == 0
