"""A process that makes room when it is told to, or holds some: see `test_budget_of_processes`.

Reads a line for each step from standard input, and answers each with one.
"""

import sys
from contextlib import ExitStack
from pathlib import Path

from kvchat.engine.memory.disk.store import DiskStore
from kvchat.errors import StorageError
from tests.engine.memory.chains import FINGERPRINT, FULL, open_store
from tests.engine.memory.disk.small_disk import conversation

NUM_SOURCES = 3
NUM_NEW = 4


def main() -> None:
    answer("ready")
    for line in sys.stdin:
        verb, place, limit, number = line.split()
        store = open_store(Path(place), limit_bytes=int(limit))
        if verb == "hold":
            hold(store, int(number))
        store.close()
        answer("closed")


def hold(store: DiskStore, number: int) -> None:
    """Hold room for a conversation that is made from the one before it, and write it when told to."""
    new, sources = conversation(number, NUM_NEW), conversation(number - 1, NUM_SOURCES)
    with ExitStack() as end:
        try:
            headers, keys = [block.header for block in new], [block.key for block in sources]
            end.enter_context(store.room_for(headers, FINGERPRINT, keys))
        except StorageError as error:
            answer(f"refused: {error}")
            sys.stdin.readline()
            return
        answer("held")
        sys.stdin.readline()
        written = [(block.header, block.payload) for block in new]
        num_written = store.write(written, is_wanted=True)
        num_left = sum(store.has_all(keys, FULL))
        answer(f"wrote {num_written}, {num_left} left")


def answer(words: str) -> None:
    print(words, flush=True)


if __name__ == "__main__":
    main()
