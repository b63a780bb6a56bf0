"""A home with a conversation whose words are looked for on disk."""

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from kvchat.app.config import read_settings
from kvchat.platform.paths import Paths
from kvchat.session.store import SessionStore
from kvchat.session.tree import MAIN
from tests.session.turns import exchange

SECRET = "marmalade zeppelin orchestra"
CHEAP = ("--cost", "10")
WORDS = (b"marmalade", b"zeppelin", b"orchestra")

Give = Callable[[str], None]


def paths_of(home: Path) -> Paths:
    return read_settings(environ={"KVCHAT_HOME": str(home)}).paths


def make_talk(home: Path, text: str = SECRET) -> None:
    """Store a conversation in the clear."""
    with closing(SessionStore(paths_of(home).sessions_db)) as store:
        session = store.create_session(title=f"about {text}", system=f"system {text}")
        branch = store.branch(session.id, MAIN)
        for number in range(3):
            branch = exchange(store, branch, f"question {number} {text}", f"reply {number} {text}")


def files_with(home: Path, *words: bytes) -> list[Path]:
    found = []
    for file in sorted(home.rglob("*")):
        data = file.read_bytes() if file.is_file() else b""
        if any(word in data or word in str(file).encode() for word in words):
            found.append(file)
    return found
