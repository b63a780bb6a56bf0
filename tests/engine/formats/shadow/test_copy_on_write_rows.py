"""Rows that sequences share, and how many bytes they hold."""

import pytest
import torch

from kvchat.engine.formats.shadow.copy_on_write_rows import Held, RowPage, Rows
from tests.engine.formats.shadow.contexts import randn

pytestmark = pytest.mark.cpu


def test_rows_are_what_was_added_however_often_and_however_many() -> None:
    data, rows = randn(1000, 3), Rows((3,), torch.float32, Held())
    start = 0
    for size in (0, 130, 1, 1, 62, 64, 65, 200, 477):
        rows.append(data[start : start + size])
        start += size
    assert len(rows) == 1000
    assert torch.equal(rows.all(), data)
    assert torch.equal(torch.cat(list(rows.parts(100, 700))), data[100:700])


def test_two_sequences_add_rows_of_their_own_behind_those_they_share() -> None:
    """Trap 11: the page is copied before the first write, and large pages that are full never are."""
    data, held = randn(600, 3), Held()
    first = Rows((3,), torch.float32, held)
    first.append(data[:500])
    first.append(data[500:510])
    before = held.num_bytes
    second = first.fork()
    assert held.num_bytes == before
    first.append(data[510:520])
    second.append(data[530:600])
    assert torch.equal(first.all(), data[:520])
    assert torch.equal(second.all(), torch.cat((data[:510], data[530:600])))
    assert second.pages[0] is first.pages[0]
    first.release()
    assert torch.equal(second.all(), torch.cat((data[:510], data[530:600])))
    second.release()
    assert held.num_bytes == 0


def test_what_is_counted_is_what_is_allocated() -> None:
    held = Held()
    rows = Rows((3,), torch.float32, held)
    for size in (300, 1, 70):
        rows.append(randn(size, 3))
        assert held.num_bytes == sum(page.data.untyped_storage().nbytes() for page in rows.pages)


def test_what_cannot_be_allocated_or_written_is_not_counted() -> None:
    held = Held()
    with pytest.raises(RuntimeError, match="memory"):
        RowPage(2**50, torch.empty(0, 3), held)
    assert held.num_bytes == 0
    rows = Rows((3,), torch.float32, held)
    with pytest.raises(RuntimeError, match="size"):
        rows.append(randn(70, 4))
    rows.release()
    assert held.num_bytes == 0
