"""Kills a process of the stores at random moments and looks at what is left.

    python -m tests.kill_loop --times 500 [--encrypted] [--limit BYTES] [--processes 2]

After each kill: every acknowledged turn and block is there and right, and the totals are those of the files.
Every few kills everything unreferenced is collected, and then nothing but referenced blocks may be left.

With a limit acknowledged blocks may go, except those that are kept; what is there is right, behind a parent
that is there, and is never more than the limit. With several processes all of them are killed, one after the
other.
"""

import argparse
import json
import subprocess
import sys
import time
from collections import Counter
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

from kvchat.engine.api.ids import BlockKey
from kvchat.engine.memory.disk.block_encryption import encryption_of
from kvchat.engine.memory.disk.store import DiskStore
from kvchat.session.store import SessionStore
from kvchat.session.tree import TurnId
from tests.engine.memory.chains import Block, block_behind, payload_of, read
from tests.kill_child import Places, collect, described_blocks

ROOT = Path(__file__).parent.parent
MOST_LINES = 60
LONGEST_PAUSE_S = 0.02
KILLS_PER_COLLECTION = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class ToldTurn:
    """A turn as it was acknowledged; an unfinished one may have grown since."""

    session: str
    text: str
    ids: tuple[int, ...]
    is_finished: bool


@dataclass(slots=True)
class Ledger:
    """Everything that was acknowledged and has not been taken away."""

    turns: dict[str, ToldTurn] = field(default_factory=dict)
    blocks: dict[BlockKey, Block] = field(default_factory=dict)
    sessions_of: dict[BlockKey, set[str]] = field(default_factory=dict)
    kept: dict[str, set[BlockKey]] = field(default_factory=dict)
    """Blocks that are there whatever needs room, by the names under which they are kept."""
    parents: dict[BlockKey, BlockKey] = field(default_factory=dict)
    """Of every block that ever was, also of one that has gone."""
    doing: str = "starting"

    def take(self, line: dict[str, Any]) -> None:
        """Note one line of the child."""
        what = line["what"]
        if what == "doing":
            self.doing = line["action"]
        elif what == "turn":
            self.turns[line["turn"]] = ToldTurn(
                session=line["session"],
                text=line["text"],
                ids=tuple(line["ids"]),
                is_finished=line["is_finished"],
            )
        elif what == "blocks":
            for block in described_blocks(line["blocks"]):
                self.blocks[block.key] = block
                self.parents[block.key] = block.header.parent
                self.sessions_of.setdefault(block.key, set()).add(line["session"])
        elif what == "going":
            self._forget(BlockKey(bytes.fromhex(key)) for key in line["blocks"])
        elif what == "kept":
            self.kept[line["name"]] = {BlockKey(bytes.fromhex(key)) for key in line["keys"]}
        elif what == "unkeeping":
            self.kept.pop(line["name"], None)
        elif what == "removing":
            self._forget_session(line["session"])
        elif what == "collecting":
            self._forget([key for key, names in self.sessions_of.items() if not names - {None}])

    def _forget(self, keys) -> None:
        for key in keys:
            self.blocks.pop(key, None)
            self.sessions_of.pop(key, None)

    def _forget_session(self, session: str) -> None:
        self.turns = {name: turn for name, turn in self.turns.items() if turn.session != session}
        for names in self.sessions_of.values():
            names.discard(session)
        self._forget([key for key, names in self.sessions_of.items() if not names])


class KillLoop:
    """Children on one home, killed one after the other.

    Args:
        limit_bytes: most bytes of blocks; None: there is no limit, and nothing makes room for anything.
        num_processes: so many children are at work at once.
    """

    def __init__(
        self,
        home: Path,
        seed: int = 0,
        *,
        is_encrypted: bool = False,
        limit_bytes: int | None = None,
        num_processes: int = 1,
    ) -> None:
        self.places = Places.of(home, is_encrypted=is_encrypted, limit_bytes=limit_bytes)
        self._options = ["--encrypted"] * is_encrypted + ["--beside-others"] * (num_processes > 1)
        self._options += [] if limit_bytes is None else ["--limit", str(limit_bytes)]
        self._num_processes = num_processes
        self.ledger = Ledger()
        self.killed: Counter[str] = Counter()
        self.checked: Counter[str] = Counter()
        self._home = home
        self._random = Random(seed)

    def kill_one(self, number: int) -> None:
        """Start a child, or several, kill each at a random moment, and check what is left.

        Raises: AssertionError: a promise was broken.
        """
        children = [self._start(number * self._num_processes + place) for place in range(self._num_processes)]
        for child in children:
            self._kill(child)
        self.check()
        if number % KILLS_PER_COLLECTION == KILLS_PER_COLLECTION - 1:
            self.check_collection()

    def _start(self, seed: int) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "tests.kill_child", str(self._home), str(seed), *self._options]
        return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def _kill(self, running: subprocess.Popen[bytes]) -> None:
        """Kill one child, and note what it has said."""
        with running as child:
            assert child.stdout is not None
            assert child.stderr is not None
            # By lines and not by time alone: a busy machine would kill every child at its start.
            heard = [child.stdout.readline() for _ in range(self._random.randrange(1, MOST_LINES))]
            time.sleep(self._random.uniform(0, LONGEST_PAUSE_S))
            child.kill()
            lines = (b"".join(heard) + child.stdout.read()).decode().splitlines(keepends=True)
            complaint = child.stderr.read().decode()
        assert complaint == "", complaint
        for line in lines:
            if line.endswith("\n"):
                self.ledger.take(json.loads(line))
        self.killed[self.ledger.doing] += 1

    def check(self) -> None:
        """Every acknowledged turn and block is there and right; what is announced is right too."""
        sessions = SessionStore(self.places.database, self.places.encryptor)
        for turn_id, told in self.ledger.turns.items():
            turn = sessions.turn(TurnId(turn_id))
            assert not turn.damaged
            assert turn.token_ids is not None
            assert turn.token_ids[: len(told.ids)] == told.ids
            assert not told.is_finished or (turn.text, turn.token_ids) == (told.text, told.ids)
        sessions.close()
        with closing(self.places.open_store()) as store:
            there = self._check_blocks(store)
        assert list(self._directory("held").glob("*.keep")) == [], "room is held for nobody"
        self.checked.update(turns=len(self.ledger.turns), blocks=len(self.ledger.blocks))
        if self.places.limit_bytes is not None:
            self._check_room(there)

    def _check_blocks(self, store: DiskStore) -> set[BlockKey]:
        """Every block that must be there is, whatever is there is right, and nothing else is on disk."""
        may_go = self.places.limit_bytes is not None
        kept: set[BlockKey] = set().union(*self.ledger.kept.values())
        for block in self.ledger.blocks.values():
            if may_go and block.key not in kept and not store.has(block.key, block.header.group):
                continue
            assert store.has(block.key, block.header.group), block.header.token_ids
            assert read(store, block) == block.payload
        there: set[BlockKey] = set()
        for found in store._index.blocks():
            (group,) = found.groups
            block = block_behind(found.parent, list(found.token_ids), group)
            assert read(store, block) == payload_of(found.key)
            there.add(found.key)
        sizes = [path.stat().st_size for path in self._directory("blocks").rglob("*.*")]
        assert (store.usage().num_blocks, store.usage().num_bytes) == (len(sizes), sum(sizes))
        return there

    def _check_room(self, there: set[BlockKey]) -> None:
        """Files keep to the limit, and none has outlived its parent."""
        sizes = [path.stat().st_size for path in self._directory("blocks").rglob("*.*")]
        assert sum(sizes) <= (self.places.limit_bytes or 0)
        for key in there:
            parent = self.ledger.parents.get(key)
            assert parent in there or parent not in self.ledger.parents
        self.checked.update(gone=len(self.ledger.blocks.keys() - there))
        self.checked.update(kept=sum(map(len, self.ledger.kept.values())))
        self.ledger.blocks = {key: block for key, block in self.ledger.blocks.items() if key in there}

    def _directory(self, name: str) -> Path:
        return encryption_of(self.places.encryptor).home(self.places.cache_dir) / name

    def check_collection(self) -> None:
        """After a collection the files are those of referenced blocks, and nothing else."""
        with closing(self.places.open_admin()) as admin:
            for name in admin.kept_names():
                admin.let_go(name)
        self.ledger.kept.clear()
        sessions = SessionStore(self.places.database, self.places.encryptor)
        self.ledger.take({"what": "collecting"})
        collect(sessions, self.places.cache_dir, self.places.encryptor)
        self.check()
        for summary in sessions.list_sessions():
            sessions.delete_session(summary.session.id)
        collect(sessions, self.places.cache_dir, self.places.encryptor)
        sessions.close()
        assert list(self._directory("blocks").rglob("*")) == []
        assert list(self._directory("quarantine").rglob("*")) == []
        self.ledger = Ledger()
        self.checked.update(collections=1)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.kill_loop", description=__doc__)
    parser.add_argument("--times", type=int, default=500, help="how many processes are killed")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--encrypted", action="store_true", help="everything is encrypted")
    parser.add_argument("--limit", type=int, help="most bytes of blocks, so that they make room")
    parser.add_argument("--processes", type=int, default=1, help="how many are at work at once")
    arguments = parser.parse_args()
    with TemporaryDirectory(prefix="kvchat-kills-") as home:
        loop = KillLoop(
            Path(home),
            arguments.seed,
            is_encrypted=arguments.encrypted,
            limit_bytes=arguments.limit,
            num_processes=arguments.processes,
        )
        for number in range(arguments.times):
            loop.kill_one(arguments.seed * 1_000_000 + number)
    during = ", ".join(f"{count} during {name}" for name, count in loop.killed.most_common())
    print(f"{loop.killed.total()} kills: {during}")
    checked = ", ".join(f"{count:,} {name}" for name, count in loop.checked.items())
    print(f"checked and right: {checked}; nothing lost, nothing wrong, nothing left behind")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
