"""The process that `kill_loop` kills: conversations and their blocks, without a model and without torch.

It says on standard output, line by line, what it has been promised, and before it takes something away, that
it will. Whatever was said must hold after SIGKILL at any moment.
"""

import json
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

from kvchat.cli.removal import TidyStore
from kvchat.engine.api.ids import BlockKey
from kvchat.engine.memory.block_catalog import BlockCatalog
from kvchat.engine.memory.block_index import IndexedBlock
from kvchat.engine.memory.block_writer import BlockWriter
from kvchat.engine.memory.bundle_blocks import BlockShelf
from kvchat.engine.memory.disk_store import DiskStore
from kvchat.session.references import references
from kvchat.session.store import Outcome, SessionStore, new_session_id
from kvchat.session.tree import MAIN, Branch, Finish, Session, SessionId
from tests.engine.memory.chains import (
    BLOCK_SIZE,
    FINGERPRINT,
    LAYOUTS,
    Block,
    block_behind,
    chain,
    open_store,
)
from tests.session.turns import open_answer, question

LONG_S = 60.0
SHARED_IDS = [1, 2, 3, 4, 5, 6, 7, 8]
"""Every other conversation begins with these, so that removal meets blocks which others still need."""


ACTIONS = {"converse": 6, "demote": 3, "import_session": 3, "remove": 2, "collect": 2}
"""What a child does, and how often of so many times."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """Where one home keeps conversations and blocks."""

    database: Path
    cache_dir: Path

    @classmethod
    def of(cls, home: Path) -> "Places":
        return cls(database=home / "data" / "sessions.db", cache_dir=home / "cache")


def say(what: str, **values: object) -> None:
    sys.stdout.write(json.dumps({"what": what, **values}) + "\n")
    sys.stdout.flush()


class Work:
    """What a person's process does with its stores, in an order drawn at random."""

    def __init__(self, home: Path, seed: int) -> None:
        self.random = Random(seed)
        self.places = Places.of(home)
        self.sessions = TidyStore(self.places.database, self.places.cache_dir)
        self.store: DiskStore = open_store(self.places.cache_dir)
        self.writer = BlockWriter(self.store, max_bytes=1 << 20)

    def run(self) -> None:
        say("ready")
        while True:
            (action,) = self.random.choices([*ACTIONS], weights=[*ACTIONS.values()])
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
            assert self.writer.submit(block.header, block.payload, replaces)
        assert self.writer.flush(LONG_S)
        saved.update((block.key, block) for block in new)
        say("blocks", session=session_id, blocks=[_described(block) for block in new])

    def demote(self) -> None:
        """Write what memory has no place for: a burst of blocks that no stored turn refers to."""
        num_blocks = self.random.randrange(3, 13)
        burst = chain([self.random.randrange(30_000) for _ in range(BLOCK_SIZE * num_blocks)])
        for block in burst:
            assert self.writer.submit(block.header, block.payload)
        assert self.writer.flush(LONG_S)
        say("blocks", session=None, blocks=[_described(block) for block in burst])

    def import_session(self) -> None:
        """Bring in a session as an import does: blocks of a namespace of its own first, then the text."""
        namespace = f"bundle:{self.random.getrandbits(64):x}"
        ids = [self.random.randrange(30_000) for _ in range(self.random.randrange(6, 40))]
        blocks = chain(ids, namespace=namespace)
        shelf = BlockShelf(
            self.places.cache_dir, FINGERPRINT, LAYOUTS, block_size=BLOCK_SIZE, limit_bytes=None
        )
        with closing(shelf):
            for block in blocks:
                header = block.header
                shelf.write(header.group, header.parent, header.token_ids, block.payload)
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
        collect(self.sessions, self.places.cache_dir)


def collect(sessions: SessionStore, cache_dir: Path) -> None:
    catalog = BlockCatalog(cache_dir)
    known = references(sessions, BLOCK_SIZE)

    def is_referenced(block: IndexedBlock) -> bool:
        return known.covers_tail(block.parent, block.token_ids) if block.is_tail else block.key in known.keys

    catalog.collect(is_referenced)
    catalog.close()


def _described(block: Block) -> dict[str, object]:
    return {"parent": block.header.parent.hex(), "ids": block.header.token_ids}


def described_blocks(values: list[dict[str, list[int] | str]]) -> Iterator[Block]:
    """Return the blocks that a line names."""
    for value in values:
        yield block_behind(BlockKey(bytes.fromhex(str(value["parent"]))), list(value["ids"]))


if __name__ == "__main__":
    Work(Path(sys.argv[1]), int(sys.argv[2])).run()
