"""The process that `kill_loop` kills: conversations and their blocks, without a model and without torch.

It says on standard output, line by line, what it has been promised, and before it takes something away, that
it will. Whatever was said must hold after SIGKILL at any moment.

    python -m tests.kill_child HOME SEED [--encrypted] [--limit BYTES] [--beside-others]
"""

import argparse
import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

from kvchat.app.retention.session_removal import SessionService
from kvchat.engine.api.ids import BlockKey
from kvchat.engine.memory.disk.cache_admin import CacheAdmin
from kvchat.engine.memory.disk.index import IndexedBlock
from kvchat.engine.memory.disk.store import DiskStore
from kvchat.engine.memory.disk.write_queue import BlockWriteQueue
from kvchat.errors import StorageError
from kvchat.platform.encryptor import Encryptor
from kvchat.session.database.backups import backup_paths
from kvchat.session.store import Outcome, SessionStore, new_session_id
from kvchat.session.tree import MAIN, Branch, Finish, Session, SessionId
from tests.engine.memory.chains import BLOCK_SIZE, FINGERPRINT, LAYOUTS, Block, Copied, block_behind, chain
from tests.patience import PATIENCE_S
from tests.session.turns import open_answer, question, references

SHARED_IDS = [1, 2, 3, 4, 5, 6, 7, 8]
"""Every other conversation begins with these, so that removal meets blocks which others still need."""


ACTIONS = {
    "converse": 6,
    "demote": 3,
    "import_session": 3,
    "convert": 2,
    "remove": 2,
    "collect": 2,
    "pin": 2,
    "reopen": 2,
}
"""What a child does, and how often of so many times."""
TAKES_FROM_OTHERS = ("remove", "collect")
"""What no child does beside another, or under a limit: nobody could say what was promised."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """Where one home keeps conversations and blocks."""

    database: Path
    cache_dir: Path
    encryptor: Encryptor | None = None
    limit_bytes: int | None = None

    @classmethod
    def of(cls, home: Path, *, is_encrypted: bool = False, limit_bytes: int | None = None) -> "Places":
        encryptor = Encryptor(bytes(range(32))) if is_encrypted else None
        return cls(
            database=home / "data" / "sessions.db",
            cache_dir=home / "cache",
            encryptor=encryptor,
            limit_bytes=limit_bytes,
        )

    def open_store(self) -> DiskStore:
        return DiskStore(
            self.cache_dir,
            fingerprint=FINGERPRINT,
            layouts=LAYOUTS,
            block_size=BLOCK_SIZE,
            limit_bytes=self.limit_bytes,
            encryptor=self.encryptor,
        )

    def open_admin(self) -> CacheAdmin:
        return CacheAdmin(self.cache_dir, encryptor=self.encryptor)


def say(what: str, **values: object) -> None:
    sys.stdout.write(json.dumps({"what": what, **values}) + "\n")
    sys.stdout.flush()


class Work:
    """What a person's process does with its stores, in an order drawn at random."""

    def __init__(self, places: Places, seed: int, actions: Sequence[str] = tuple(ACTIONS)) -> None:
        self.random = Random(seed)
        self.places = places
        self.actions = actions
        self.stored: list[list[Block]] = []
        """The blocks of conversations that this process has saved."""
        self._open()

    def _open(self) -> None:
        places = self.places
        self.sessions = SessionService(places.database, places.cache_dir, places.encryptor)
        self.store = places.open_store()
        self.writer = BlockWriteQueue(self.store, max_bytes=1 << 20)

    def run(self) -> None:
        say("ready")
        while True:
            (action,) = self.random.choices(self.actions, weights=[ACTIONS[name] for name in self.actions])
            say("doing", action=action)
            getattr(self, action)()

    def converse(self) -> None:
        """Ask, let the answer grow, save its blocks and its tail as they fill, and finish it."""
        session = self.sessions.create_session()
        branch = self.sessions.branch(session.id, MAIN)
        ids = list(SHARED_IDS) if self.random.random() < 0.5 else []
        ids += [self.random.randrange(30_000) for _ in range(self.random.randrange(4, 20))]
        asked = question(session.id, f"What of {ids}?", ids)
        answer = replace(open_answer(asked), fingerprint=FINGERPRINT.hex())
        self.sessions.add_turns(branch, (asked, answer))
        say("turn", session=session.id, turn=asked.id, text=asked.text, ids=ids, is_finished=True)
        grown: list[int] = []
        saved: dict[BlockKey, Block] = {}
        for _ in range(self.random.randrange(1, 5)):
            piece = [self.random.randrange(30_000) for _ in range(self.random.randrange(1, 6))]
            self.sessions.append_to_answer(answer.id, piece, f"{piece}")
            grown += piece
            say("turn", session=session.id, turn=answer.id, text="", ids=grown, is_finished=False)
            self._save(session.id, chain(ids + grown), saved)
        self.sessions.finish_answer(answer.id, Outcome(finish=Finish.COMPLETE))
        self.stored.append(list(saved.values()))
        text = self.sessions.turn(answer.id).text
        say("turn", session=session.id, turn=answer.id, text=text, ids=grown, is_finished=True)

    def _save(self, session_id: SessionId, blocks: list[Block], saved: dict[BlockKey, Block]) -> None:
        """Save what is new of a conversation; its tail replaces the one before."""
        new = [block for block in blocks if block.key not in saved]
        tails = [block for block in saved.values() if len(block.header.token_ids) < BLOCK_SIZE]
        for tail in tails:
            say("going", blocks=[tail.key.hex()])
            del saved[tail.key]
        for block in new:
            replaces = tails[0].key if tails and block is new[-1] else None
            assert self.writer.submit(block.header, Copied(block.payload), replaces)
        assert self.writer.flush(PATIENCE_S)
        saved.update((block.key, block) for block in new)
        say("blocks", session=session_id, blocks=[_described(block) for block in new])

    def demote(self) -> None:
        """Write what memory has no place for: a burst of blocks that no stored turn refers to."""
        num_blocks = self.random.randrange(3, 13)
        burst = chain([self.random.randrange(30_000) for _ in range(BLOCK_SIZE * num_blocks)])
        for block in burst:
            assert self.writer.submit(block.header, Copied(block.payload))
        assert self.writer.flush(PATIENCE_S)
        say("blocks", session=None, blocks=[_described(block) for block in burst])

    def import_session(self) -> None:
        """Bring in a session as an import does: blocks of a namespace of its own first, then the text."""
        namespace = f"bundle:{self.random.getrandbits(64):x}"
        ids = [self.random.randrange(30_000) for _ in range(self.random.randrange(6, 40))]
        blocks = chain(ids, namespace=namespace)
        block_store = DiskStore(
            self.places.cache_dir,
            fingerprint=FINGERPRINT,
            layouts=LAYOUTS,
            block_size=BLOCK_SIZE,
            limit_bytes=self.places.limit_bytes,
            encryptor=self.places.encryptor,
        )
        with closing(block_store):
            for block in blocks:
                block_store.write([(block.header, block.payload)])
        session = Session(
            id=new_session_id(),
            title="",
            system="",
            model="",
            created_at=1.0,
            updated_at=1.0,
            namespace=namespace,
        )
        turn = replace(question(session.id, f"From elsewhere: {ids}", ids), fingerprint=FINGERPRINT.hex())
        branch = Branch(session_id=session.id, name=MAIN, leaf_id=turn.id, updated_at=1.0)
        self.sessions.adopt(session, [branch], [turn])
        say("turn", session=session.id, turn=turn.id, text=turn.text, ids=ids, is_finished=True)
        say("blocks", session=session.id, blocks=[_described(block) for block in blocks])

    def convert(self) -> None:
        """Write what is made from a conversation's blocks, in room that is held for all of it beforehand."""
        if not self.stored:
            return
        keys = [block.key for block in self.random.choice(self.stored)]
        ids = [self.random.randrange(30_000) for _ in range(self.random.randrange(4, 30))]
        new = chain(ids, namespace=f"int4<-{self.random.getrandbits(64):x}")
        with suppress(StorageError):  # under a limit there may be no room
            with self.store.room_for([block.header for block in new], FINGERPRINT, keys):
                for block in new:
                    assert self.store.write([(block.header, block.payload)], is_wanted=True)
            say("blocks", session=None, blocks=[_described(block) for block in new])

    def remove(self) -> None:
        """Remove one session with its text and the blocks that no other session needs."""
        listed = self.sessions.list_sessions()
        if len(listed) > 3:
            doomed = self.random.choice(listed).session.id
            say("removing", session=doomed)
            self.sessions.remove_sessions([doomed])
            say("removed", session=doomed)

    def collect(self) -> None:
        """Collect everything that no stored turn refers to."""
        say("collecting")
        collect(self.sessions, self.places.cache_dir, self.places.encryptor)

    def pin(self) -> None:
        """Keep the blocks of a conversation whatever needs room, or let go of what this process kept."""
        with closing(self.places.open_admin()) as admin:
            own = [name for name in admin.kept_names() if name.startswith(f"kept{os.getpid()}x")]
            if own and self.random.random() < 0.4:
                say("unkeeping", name=own[0])
                admin.let_go(own[0])
            elif self.stored:
                keys = [block.key for block in self.random.choice(self.stored)]
                name = f"kept{os.getpid()}x{self.random.getrandbits(32):x}"
                admin.keep(name, FINGERPRINT, keys)
                there = admin.found(FINGERPRINT, keys)
                say("kept", name=name, keys=[key.hex() for key in keys if key in there])

    def reopen(self) -> None:
        """Close everything, as a process does that ends, with a copy of the database as once a day."""
        for copy in backup_paths(self.places.database):
            if copy.exists():
                os.utime(copy, (0.0, 0.0))
        assert self.writer.close(PATIENCE_S)
        self.store.close()
        self.sessions.close()
        self._open()


def collect(sessions: SessionStore, cache_dir: Path, encryptor: Encryptor | None = None) -> None:
    admin = CacheAdmin(cache_dir, encryptor=encryptor)
    known = references(sessions, BLOCK_SIZE)

    def is_referenced(block: IndexedBlock) -> bool:
        return known.covers_tail(block.parent, block.token_ids) if block.is_tail else block.key in known.keys

    admin.collect(is_referenced)
    admin.close()


def _described(block: Block) -> dict[str, object]:
    return {"parent": block.header.parent.hex(), "ids": block.header.token_ids}


def described_blocks(values: list[dict[str, list[int] | str]]) -> Iterator[Block]:
    """Return the blocks that a line names."""
    for value in values:
        yield block_behind(BlockKey(bytes.fromhex(str(value["parent"]))), list(value["ids"]))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("home", type=Path)
    parser.add_argument("seed", type=int)
    parser.add_argument("--encrypted", action="store_true")
    parser.add_argument("--limit", type=int)
    parser.add_argument("--beside-others", action="store_true")
    given = parser.parse_args()
    places = Places.of(given.home, is_encrypted=given.encrypted, limit_bytes=given.limit)
    takes_nothing = given.beside_others or given.limit is not None
    actions = [name for name in ACTIONS if not takes_nothing or name not in TAKES_FROM_OTHERS]
    Work(places, given.seed, actions).run()


if __name__ == "__main__":
    main()
