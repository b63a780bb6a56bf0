"""The process that `test_small_disk` runs on a small file system: it imports where there is no room.

Says on standard output what went wrong, one complaint a line, and at the end how often the text was refused,
and how often it came in with a part of its KV and with all of it.
"""

import json
import os
import sys
from collections import Counter
from contextlib import closing, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

from kvchat.cli.main import run
from kvchat.session.store import SessionStore
from tests.small_disk_child import ADVICE, filled

NUM_LEFT = (0, 5, 12, 24, 40, 60, 100, 150, 200, 260, 320)
"""Pages of a disk; the example takes about 200 with its database."""


def command(*words: str) -> tuple[int, Any]:
    """Run a command line and return its code and what it said."""
    said = StringIO()
    with redirect_stdout(said):
        code = run([*words, "--json"])
    return code, json.loads(said.getvalue())


def texts(home: Path) -> list[list[str]]:
    """Return the texts of each session that is stored."""
    with closing(SessionStore(home / "data" / "sessions.db")) as store:
        return [
            [turn.text for turn in store.all_turns(one.session.id)]
            for one in store.list_sessions()
            if one.session.title != "before"
        ]


def complaints_of(home: Path, code: int, said: Any, whole: list[str], seen: Counter[str]) -> list[str]:
    """Return what is wrong with what an import has said, and left."""
    found = [f"{path} is left" for path in (home / "cache").rglob(".*") if path.is_file()]
    stored = texts(home)
    if code:
        seen["refused"] += 1
        if stored:
            found.append("it was refused, and a part of it is there")
        if code != 1 or not any(words in said["message"] for words in ADVICE):
            found.append(f"code {code}, and no advice: {said}")
        return found
    (imported,) = said
    seen["all" if imported["blocks"] == imported["of_blocks"] else "some"] += 1
    if stored != [whole]:
        found.append("the text is not what it was")
    if imported["blocks"] < imported["of_blocks"] and not imported["not_stored"]:
        found.append("blocks are missing, and nothing is said")
    return found


def main(home: Path, bundle: str) -> None:
    os.environ["KVCHAT_HOME"] = str(home)
    complaints: list[str] = []
    seen: Counter[str] = Counter()
    _, (imported,) = command("import", bundle)
    (whole,) = texts(home)
    command("sessions", "rm", "-y", imported["session"])
    for num_left in NUM_LEFT:
        with filled(home.parent, num_left):
            code, said = command("import", bundle)
        complaints += complaints_of(home, code, said, whole, seen)
        _, freed = command("cache", "gc")
        if freed["freed_blocks"]:
            complaints.append("a block of nobody was left")
        if not code:
            command("sessions", "rm", "-y", said[0]["session"])
    print("\n".join(complaints) or f"{seen['refused']} refusals, {seen['some']} in part, {seen['all']} whole")


if __name__ == "__main__":
    main(Path(sys.argv[1]) / "home", sys.argv[2])
