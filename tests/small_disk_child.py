"""The process that `test_small_disk` runs on a small file system of its own: it fills the disk, and goes on.

Says on standard output what went wrong, one complaint a line, and at the end how often it was refused.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from kvchat.engine.memory.disk.store import DiskStore
from kvchat.errors import StorageError
from kvchat.session.bundle.writer import new_file
from kvchat.session.store import Outcome, SessionStore
from kvchat.session.tree import MAIN, Branch, Finish, TurnId
from tests.engine.memory.chains import Block, chain, open_store, read
from tests.session.turns import open_answer, question

PAGE = 4096
BLOCKS = chain(list(range(40)))
NOBODY = 65534
LONG = "a long answer " * 600
ADVICE = ("free some space", "its free space", "cache directory", "--data-dir", "another place")


class Disk:
    """What is kept on the small file system, and what was acknowledged of it."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.num_refusals = 0
        self.told: dict[TurnId, str] = {}
        self.saved: list[Block] = []
        self.complaints: list[str] = []

    @contextmanager
    def opened(self) -> Iterator[tuple[SessionStore, DiskStore]]:
        path = self.home / "sessions.db"
        with closing(SessionStore(path)) as sessions, closing(open_store(self.home)) as store:
            yield sessions, store

    def use(self, sessions: SessionStore, store: DiskStore) -> None:
        """Ask, answer in two pieces, save blocks and export a file; note what was acknowledged."""
        with self.refusals_told():
            session = sessions.create_session()
            self._converse(sessions, sessions.branch(session.id, MAIN))
        with self.refusals_told():
            for block in BLOCKS[len(self.saved) : len(self.saved) + 2]:
                store.write([(block.header, block.payload)])
                self.saved.append(block)
        with self.refusals_told(), new_file(self.home / "export.kvchat") as write:
            write(bytes(3 * PAGE))

    def _converse(self, sessions: SessionStore, branch: Branch) -> None:
        asked = question(branch.session_id, "What is left?")
        answer = open_answer(asked)
        sessions.add_turns(branch, (asked, answer))
        self.told |= {asked.id: asked.text, answer.id: ""}
        try:
            for _ in range(2):
                sessions.append_to_answer(answer.id, [1], LONG)
                self.told[answer.id] += LONG
            sessions.finish_answer(answer.id, Outcome(finish=Finish.COMPLETE))
        except StorageError:
            sessions.abandon_answer(answer.id)
            raise

    def check(self, sessions: SessionStore, store: DiskStore) -> None:
        """Everything that was acknowledged is there and right."""
        for turn_id, text in self.told.items():
            turn = sessions.turn(turn_id)
            if turn.damaged or turn.text != text:
                self.complaints.append(f"{turn.text[:20]!r} is not {text[:20]!r}")
        for block in self.saved:
            if read(store, block) != block.payload:
                self.complaints.append("a block holds other bytes")
        left = [path.name for path in self.home.rglob("*.tmp")]
        if left:
            self.complaints.append(f"{left} is left behind")

    @contextmanager
    def refusals_told(self) -> Iterator[None]:
        """Count a refusal; one that does not say what to do is a complaint."""
        try:
            yield
        except StorageError as error:
            self.num_refusals += 1
            if not any(words in str(error) for words in ADVICE):
                self.complaints.append(f"no advice: {error}")


@contextmanager
def filled(place: Path, num_left: int) -> Iterator[None]:
    """Fill a file system but for some pages."""
    filler = place / "filler"
    with open(filler, "wb", buffering=0) as file:
        with suppress(OSError):
            while True:
                file.write(bytes(PAGE))
        os.truncate(filler, max(0, file.tell() - num_left * PAGE))
    yield
    filler.unlink()


def fill_again_and_again(place: Path) -> Disk:
    """Do everything with every number of pages left, then with enough."""
    disk = Disk(place / "home")
    with (
        closing(SessionStore(disk.home / "sessions.db")) as sessions,
        closing(open_store(disk.home)) as store,
    ):
        disk.use(sessions, store)
        for num_left in range(0, 60, 3):
            with filled(place, num_left):
                disk.use(sessions, store)
                disk.check(sessions, store)
        num_refusals = disk.num_refusals
        disk.use(sessions, store)
        disk.check(sessions, store)
        if disk.num_refusals != num_refusals:
            disk.complaints.append("it does not go on once there is room")
    return disk


def be_refused(place: Path) -> Disk:
    """Take the right to write away from a running process, and from one that starts then."""
    if os.geteuid() == 0:  # which may write everywhere
        os.chown(place, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
    disk = Disk(place / "home")
    with disk.opened() as (sessions, store):
        disk.use(sessions, store)
        with read_only(disk.home):
            disk.use(sessions, store)
            disk.check(sessions, store)
    with read_only(disk.home), disk.refusals_told(), disk.opened():
        disk.complaints.append("it opens what it may not write")
    with disk.opened() as (sessions, store):
        num_refusals = disk.num_refusals
        disk.use(sessions, store)
        disk.check(sessions, store)
        if disk.num_refusals != num_refusals:
            disk.complaints.append("it does not go on once it may write")
    return disk


@contextmanager
def read_only(home: Path) -> Iterator[None]:
    """Allow nobody to write in a directory or to what is in it."""
    paths = [home, *home.rglob("*")]
    modes = {path: path.stat().st_mode & 0o777 for path in paths}
    for path, mode in reversed(modes.items()):
        path.chmod(mode & 0o555)
    yield
    for path, mode in modes.items():
        path.chmod(mode)


if __name__ == "__main__":
    done = {"fill": fill_again_and_again, "read-only": be_refused}[sys.argv[1]](Path(sys.argv[2]))
    with closing(SessionStore(done.home / "sessions.db")) as again, closing(open_store(done.home)) as blocks:
        done.check(again, blocks)
    print(
        "\n".join(done.complaints)
        or f"{done.num_refusals} refusals, {len(done.told)} turns, {len(done.saved)} blocks"
    )
