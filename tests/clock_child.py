"""The process that `test_clock_jumps` runs under a wrong clock: sessions, blocks, and their collection.

Prints what it finds as JSON. The first argument is by how many seconds the machine's clock is wrong.
"""

import json
import sys
import time

_real_time = time.time
time.time = lambda: _real_time() + float(sys.argv[1])  # before anything of kvchat is imported

from contextlib import closing  # noqa: E402
from dataclasses import replace  # noqa: E402
from pathlib import Path  # noqa: E402

from kvchat.errors import StorageError  # noqa: E402
from kvchat.session.store import Outcome, SessionStore  # noqa: E402
from kvchat.session.tree import MAIN, Finish  # noqa: E402
from tests.engine.memory.chains import FINGERPRINT, chain, open_store, read  # noqa: E402
from tests.kill_child import collect  # noqa: E402
from tests.session.turns import open_answer, question  # noqa: E402

DAILY_BYTES = 4000


def main() -> None:
    home, title = Path(sys.argv[2]), sys.argv[3]
    with closing(SessionStore(home / "sessions.db")) as sessions:
        known = {one.session.title for one in sessions.list_sessions()}
        session = sessions.find(title) if title in known else sessions.create_session(title=title)
        branch = sessions.branch(session.id, MAIN)
        ids = [len(known), *range(1, 8)] if branch.leaf_id is None else [7, 7]
        asked = replace(question(session.id, "Well?", ids, branch.leaf_id), fingerprint=FINGERPRINT.hex())
        answer = open_answer(asked)
        sessions.add_turns(branch, (asked, answer))
        sessions.append_to_answer(answer.id, [9], "Yes.")
        sessions.finish_answer(answer.id, Outcome(finish=Finish.COMPLETE))
        refusals = _save(home, ids if branch.leaf_id is None else [])
        collect(sessions, home)
        listed = [one.session for one in sessions.list_sessions()]
        turns = {one.title: len(sessions.all_turns(one.id)) for one in listed}
    with closing(open_store(home, clock=time.time)) as store:
        written = store.written()
        found = {"blocks": store.usage().num_blocks, "today": written.today, "total": written.total}
    print(json.dumps({"listed": list(turns), "turns": turns, "refusals": refusals, **found}))


def _save(home: Path, ids: list[int]) -> int:
    """Save blocks until the day's budget is spent; return how many were refused."""
    refusals = 0
    with closing(open_store(home, clock=time.time, daily_bytes=DAILY_BYTES)) as store:
        for block in chain(ids):
            try:
                store.write([(block.header, block.payload)])
            except StorageError:
                refusals += 1
            else:
                assert read(store, block) == block.payload
    return refusals


main()
