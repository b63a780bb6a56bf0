"""Several processes that make room under one limit: no more goes than must, and what is held is held."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from kvchat.errors import StorageError
from tests.engine.memory.chains import open_store, write_all
from tests.engine.memory.disk.budget_child import NUM_NEW, NUM_SOURCES
from tests.engine.memory.disk.small_disk import Disk, MakeDisk, conversation, file_bytes

pytestmark = pytest.mark.pure

ROOT = Path(__file__).parents[4]
NUM_ROUNDS = 10


class Process:
    """A process that does one thing at a time under a limit, when it is told to."""

    def __init__(self, child: "subprocess.Popen[str]") -> None:
        self.child = child
        assert self.heard() == "ready"

    def tell(self, *words: object) -> None:
        assert self.child.stdin is not None
        print(*words, file=self.child.stdin, flush=True)

    def heard(self) -> str:
        assert self.child.stdout is not None
        return self.child.stdout.readline().strip()

    def hold(self, place: Path, limit_bytes: int, number: int) -> str:
        self.tell("hold", place, limit_bytes, number)
        return self.heard()

    def go_on(self) -> str:
        self.tell()
        return self.heard()


@contextmanager
def process() -> Iterator[Process]:
    child = subprocess.Popen(
        [sys.executable, "-m", "tests.engine.memory.disk.budget_child"],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with child:
        try:
            yield Process(child)
        finally:
            child.kill()


def num_bytes(cache_dir: Path) -> int:
    """Return what lies in a directory of what the limit is about."""
    places = (cache_dir / "blocks", cache_dir / "quarantine")
    return sum(path.stat().st_size for place in places for path in place.rglob("*") if path.is_file())


def test_two_processes_that_make_room_at_once_let_go_of_no_more_than_one_would(tmp_path: Path) -> None:
    limit_bytes = 30 * file_bytes(tmp_path / "sized")
    with process() as one, process() as other:
        for number in range(NUM_ROUNDS):
            place = tmp_path / str(number)
            with closing(open_store(place)) as store:
                for block in range(40):
                    write_all(store, conversation(block, 1))
            for each in (one, other):
                each.tell("open", place, limit_bytes, 0)
            assert [one.heard(), other.heard()] == ["closed", "closed"]
            assert num_bytes(place) == limit_bytes


def test_room_that_one_process_holds_is_taken_by_no_other_which_is_told_how_much_it_is(
    tmp_path: Path, make_disk: MakeDisk
) -> None:
    disk = full_disk(make_disk)
    with process() as one:
        assert one.hold(tmp_path / "cache", disk.limit_bytes, 2) == "held"
        before = num_bytes(tmp_path / "cache")
        told = f"others are just writing {NUM_NEW * disk.bytes_each / 1024:.1f} KiB"
        with pytest.raises(StorageError, match=told), disk.room(conversation(6, NUM_NEW), conversation(5, 2)):
            raise AssertionError
        assert num_bytes(tmp_path / "cache") == before
        for number in range(10, 16):
            disk.request(conversation(number, 4))
            assert num_bytes(tmp_path / "cache") <= (10 - NUM_NEW) * disk.bytes_each
        assert one.go_on() == f"wrote {NUM_NEW}, {NUM_SOURCES} left"
        assert one.heard() == "closed"
    assert disk.found(conversation(2, NUM_NEW)) == NUM_NEW
    assert num_bytes(tmp_path / "cache") <= disk.limit_bytes


def test_of_two_processes_that_ask_for_the_same_room_at_once_one_gets_it(tmp_path: Path) -> None:
    limit_bytes = 10 * file_bytes(tmp_path / "sized")
    with process() as one, process() as other:
        for number in range(NUM_ROUNDS):
            place = tmp_path / str(number)
            with closing(open_store(place)) as store:
                for block in (*conversation(1, NUM_SOURCES), *conversation(3, NUM_SOURCES)):
                    write_all(store, [block])
            one.tell("hold", place, limit_bytes, 2)
            other.tell("hold", place, limit_bytes, 4)
            told = [each.heard().partition(":")[0] for each in (one, other)]
            assert sorted(told) == ["held", "refused"]
            for each, words in zip((one, other), told, strict=True):
                each.tell()
                if words == "held":
                    assert each.heard() == f"wrote {NUM_NEW}, {NUM_SOURCES} left"
                assert each.heard() == "closed"
            assert num_bytes(place) <= limit_bytes


def test_what_a_killed_process_held_is_given_back(tmp_path: Path, make_disk: MakeDisk) -> None:
    disk = full_disk(make_disk)
    with process() as one:
        assert one.hold(tmp_path / "cache", disk.limit_bytes, 2) == "held"
        assert list((tmp_path / "cache").glob("held/*"))
        one.child.kill()
        one.child.wait()
    new, sources = conversation(6, 8), conversation(5, 2)
    with disk.room(new, sources):
        assert disk.write_all(new) == 8
    assert disk.store.total_usage().num_bytes == num_bytes(tmp_path / "cache") == disk.limit_bytes
    assert list((tmp_path / "cache").glob("held/*")) == []


def full_disk(make_disk: MakeDisk) -> Disk:
    """Return one with room for 10 blocks that are there: two conversations, and some that were used once."""
    disk = make_disk(10)
    for blocks in (conversation(1, NUM_SOURCES), conversation(5, 2), conversation(7, 5)):
        for block in blocks:
            assert disk.write(block)
    disk.touch([*conversation(1, NUM_SOURCES), *conversation(5, 2)])
    return disk
