"""What encryption costs: saving and reading blocks, storing and searching conversations; no model."""

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from time import process_time, time

from benchmarks.table import Row
from kvchat.engine.api.ids import GroupId, chain_keys, root_key
from kvchat.engine.memory.disk.block_file import BlockHeader, Layout, Region
from kvchat.engine.memory.disk.store import DiskStore
from kvchat.platform.encryptor import Encryptor
from kvchat.session.store import Outcome, SessionStore, new_turn_id
from kvchat.session.tree import MAIN, Finish, Role, Turn

BLOCK_SIZE, NUM_BLOCKS, NUM_EXCHANGES = 64, 64, 500
ROUNDS, QUICK_ROUNDS = 7, 3
FINGERPRINT, GROUP = bytes(32), GroupId(0)
# A block of the 360 M shape: 2.6 MB in 64 regions.
LAYOUT: Layout = tuple(
    Region(name=f"layers.{layer}.{part}", dtype="BF16", shape=(5, BLOCK_SIZE, 64))
    for layer in range(32)
    for part in "kv"
)
WORDS = [f"word{number}" for number in range(300)]


def measure(*, quick: bool = False) -> list[Row]:
    """Return ratios of processor time, encrypted to plain, measured in turn."""
    Encryptor(bytes(range(32)))  # where what it needs is not installed, nothing is measured in vain
    taken: dict[str, list[tuple[float, float]]] = {}
    for number in range(QUICK_ROUNDS if quick else ROUNDS):
        plain, encrypted = _all_times(None, number), _all_times(Encryptor(bytes(range(32))), number)
        for name in plain:
            taken.setdefault(name, []).append((plain[name], encrypted[name]))
    rows = []
    for name, pairs in taken.items():
        rows.append(Row.of(f"{name}, plain", "ms", [1e3 * plain for plain, _ in pairs]))
        rows.append(Row.of(f"{name}, encrypted", "ms", [1e3 * encrypted for _, encrypted in pairs]))
        rows.append(Row.of("  ratio", "", [encrypted / plain for plain, encrypted in pairs]))
    return rows


def _all_times(encryptor: Encryptor | None, seed: int) -> dict[str, float]:
    with TemporaryDirectory(prefix="kvchat-bench-") as directory:
        return _block_times(Path(directory), encryptor, seed) | _session_times(Path(directory), encryptor)


def _block_times(directory: Path, encryptor: Encryptor | None, seed: int) -> dict[str, float]:
    ids = tuple(range(1, NUM_BLOCKS * BLOCK_SIZE + 1))
    keys = chain_keys(root_key(FINGERPRINT), ids, BLOCK_SIZE)
    headers = [
        BlockHeader.of(GROUP, parent, ids[at * BLOCK_SIZE : (at + 1) * BLOCK_SIZE])
        for at, parent in enumerate([root_key(FINGERPRINT), *keys[:-1]])
    ]
    payload = Random(seed).randbytes(sum(region.nbytes for region in LAYOUT))
    out = memoryview(bytearray(len(payload)))
    store = DiskStore(
        directory / "cache",
        fingerprint=FINGERPRINT,
        layouts={GROUP: LAYOUT},
        block_size=BLOCK_SIZE,
        limit_bytes=None,
        encryptor=encryptor,
    )
    with closing(store):
        size = f"{NUM_BLOCKS * len(payload) / 1e6:.0f} MB of blocks"
        return {
            f"write {size}": _seconds(lambda: [store.write([(header, payload)]) for header in headers]),
            f"match {NUM_BLOCKS} blocks": _seconds(lambda: store.has_all(keys, GROUP)),
            f"read {size}": _seconds(lambda: [store.read_into(header, out) for header in headers]),
        }


def _session_times(directory: Path, encryptor: Encryptor | None) -> dict[str, float]:
    with closing(SessionStore(directory / "sessions.db", encryptor)) as store:
        session = store.create_session(title="measured")
        stored = _seconds(lambda: _talk(store, session.id))
        leaf = store.branch(session.id, MAIN).leaf_id
        return {
            f"store {NUM_EXCHANGES} exchanges": stored,
            "open them": _seconds(lambda: store.turns_to(leaf)),
            "first search": _seconds(lambda: store.search("word7")),
            "next search": _seconds(lambda: store.search("word9")),
            "list sessions": _seconds(store.list_sessions),
        }


def _talk(store: SessionStore, session_id: str) -> None:
    random = Random(0)
    session = store.session(store.find(session_id).id)
    branch = store.branch(session.id, MAIN)
    for _ in range(NUM_EXCHANGES):
        text = " ".join(random.choices(WORDS, k=60))
        asked = Turn(
            id=new_turn_id(),
            session_id=session.id,
            parent_id=branch.leaf_id,
            role=Role.USER,
            text=text,
            token_ids=tuple(range(80)),
            finish=Finish.COMPLETE,
            created_at=time(),
        )
        answer = Turn(
            id=new_turn_id(),
            session_id=session.id,
            parent_id=asked.id,
            role=Role.ASSISTANT,
            text="",
            token_ids=(),
            finish=Finish.PARTIAL,
            created_at=time(),
        )
        branch = store.add_turns(branch, (asked, answer))
        for piece in range(4):
            store.append_to_answer(answer.id, range(20), f"{text[: 20 * piece]} ")
        store.finish_answer(answer.id, Outcome(finish=Finish.COMPLETE))


def _seconds(action: Callable[[], object]) -> float:
    """Return the processor time of one call: waiting for the medium costs the same either way."""
    start_s = process_time()
    action()
    return process_time() - start_s
