"""A pinned session keeps its blocks on disk: they are refused or kept, never dropped."""

import json
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kvchat.app.config import read_settings
from kvchat.app.open_store import open_store
from kvchat.app.retention.session_removal import SessionService
from kvchat.engine.memory.disk.cache_admin import CacheAdmin
from kvchat.session.store import new_turn_id
from kvchat.session.tree import Role
from tests.cli.command_line import Run
from tests.cli.commands.sessions.test_browse import add
from tests.engine.memory import chains
from tests.engine.recurrent_models import save_recurrent
from tests.tiny_models import write_model

pytestmark = [pytest.mark.cpu, pytest.mark.usefixtures("loading_pays")]

LONG = " ".join(f"{number} is a number." for number in range(20))
Kvchat = Callable[..., Any]


@pytest.fixture
def kvchat(default_model: None, run: Run, monkeypatch: pytest.MonkeyPatch) -> Kvchat:
    monkeypatch.setenv("KVCHAT_BLOCK_SIZE", "16")
    return run.json


def ask(kvchat: Kvchat, name: str, text: str, *, is_new: bool = False) -> Any:
    return kvchat("ask", "--max-tokens", "4", "--new" if is_new else "-s", name, text)


def held(kvchat: Kvchat) -> dict[str, int]:
    """Return by name how many bytes everybody has on disk."""
    return {row["name"]: row["num_bytes"] for row in kvchat("cache", "ls")}


def is_whole(answer: Any, before: Any) -> bool:
    """Whether nothing of what was computed up to an earlier answer was computed for another."""
    length = before["usage"]["prompt_tokens"] + before["usage"]["completion_tokens"]
    return answer["usage"]["cached_tokens"] >= length - 1


def test_a_pinned_session_keeps_its_blocks_and_what_it_adds(kvchat: Kvchat, run: Run) -> None:
    ask(kvchat, "other", f"other: {LONG}", is_new=True)
    first = ask(kvchat, "pinned", f"pinned: {LONG}", is_new=True)
    before = held(kvchat)
    assert run("sessions", "pin", "pinned")[0] == 0
    kvchat("cache", "evict", "--all")
    assert before["pinned"] * 3 // 4 < held(kvchat)["pinned"] <= before["pinned"]
    assert "other" not in held(kvchat)

    second = ask(kvchat, "pinned", f"and {LONG}")
    assert is_whole(second, first)
    grown = held(kvchat)["pinned"]
    kvchat("cache", "evict", "--to", "1")
    kvchat("cache", "gc")
    assert grown * 3 // 4 < held(kvchat)["pinned"] <= grown
    assert is_whole(ask(kvchat, "pinned", "and?"), second)


def test_a_pinned_session_of_a_recurrent_model_keeps_the_state_that_it_goes_on_from(
    kvchat: Kvchat, run: Run, tmp_path: Path
) -> None:
    model = str(write_model(save_recurrent("Qwen3_5", tmp_path / "recurrent")))
    ask = ("ask", "-m", model, "--max-tokens", "4")
    before = kvchat(*ask, "--new", "pinned", LONG)
    assert run("sessions", "pin", "pinned")[0] == 0
    kvchat("cache", "evict", "--all")
    assert is_whole(kvchat(*ask, "-s", "pinned", "and?"), before)


def test_a_limit_takes_everything_else_first(
    kvchat: Kvchat, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = ask(kvchat, "pinned", LONG, is_new=True)
    size = held(kvchat)["pinned"]
    assert run("sessions", "pin", "pinned")[0] == 0
    monkeypatch.setenv("KVCHAT_KV_DISK_BYTES", str(3 * size))
    for number in range(3):
        ask(kvchat, f"other {number}", f"{number}: {LONG}", is_new=True)
    assert kvchat("cache", "status")["disk_bytes"] <= 3 * size
    assert is_whole(ask(kvchat, "pinned", "and?"), first)


def test_a_pinned_session_that_grows_beyond_the_share_is_told_of(
    kvchat: Kvchat, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it adds makes room like any other, which nobody should have to find in a log."""
    ask(kvchat, "pinned", LONG, is_new=True)
    size = held(kvchat)["pinned"]
    assert run("sessions", "pin", "pinned")[0] == 0
    monkeypatch.setenv("KVCHAT_KV_DISK_BYTES", str(2 * size + size // 2))
    code, out, err = run("ask", "--max-tokens", "4", "-s", "pinned", f"and {LONG}", "--json")
    assert code == 0
    (told,) = [words for words in json.loads(out)["notices"] if "pinned session has added" in words]
    assert "--kv-disk-bytes" in told
    assert told in " ".join(err.split())
    events = run.lines("ask", "--max-tokens", "4", "-s", "pinned", "and?", "--ndjson")
    assert [one["event"] for one in events if "pinned session has added" in str(one)] == ["notice"]
    assert events[-1]["event"] == "done"


def test_an_unpinned_or_deleted_session_keeps_nothing(kvchat: Kvchat, run: Run) -> None:
    for name in ("one", "two"):
        ask(kvchat, name, f"{name}: {LONG}", is_new=True)
        assert run("sessions", "pin", name)[0] == 0
    assert run("sessions", "unpin", "one")[0] == 0
    kvchat("cache", "evict", "--all")
    assert list(held(kvchat)) == ["two"]
    removed = kvchat("sessions", "rm", "--yes", "two")
    assert removed["freed_blocks"] > 0
    assert removed["shared_blocks"] == 0
    assert kvchat("cache", "status")["disk_bytes"] == 0


def test_what_deleting_would_free_counts_what_only_its_own_pin_keeps(kvchat: Kvchat, run: Run) -> None:
    ask(kvchat, "one", LONG, is_new=True)
    assert run("sessions", "pin", "one")[0] == 0
    with closing(open_store(read_settings())) as store:
        session_id = store.find("one").id
        would = store.would_remove([session_id])
        assert would.shared_blocks == 0
        assert would == store.remove_sessions([session_id])


def test_a_pinned_session_that_is_verified_keeps_what_took_the_place_of_its_bundles_blocks(
    kvchat: Kvchat, run: Run, tiny_model: Path, tmp_path: Path
) -> None:
    first = ask(kvchat, "demo", LONG, is_new=True)
    bundle = tmp_path / "demo.kvchat"
    assert run("export", "demo", "-o", str(bundle))[0] == 0
    kvchat("sessions", "rm", "--yes", "demo")
    (imported,) = kvchat("import", str(bundle), "-m", str(tiny_model))
    assert imported["kv"] == "untrusted", imported["differing"]
    assert run("sessions", "pin", "demo")[0] == 0
    verified = kvchat("sessions", "verify", "--all", "demo")
    assert (verified["trusted"], verified["different"]) == (True, 0)
    before = held(kvchat)["demo"]
    kvchat("cache", "evict", "--all")
    assert before * 3 // 4 < held(kvchat)["demo"] <= before
    assert is_whole(ask(kvchat, "demo", "and?"), first)


def test_a_removed_branch_is_kept_by_no_list_even_where_nothing_more_may_be_kept(home: Path) -> None:
    """Lists name blocks by their token ids, of every model that answered."""
    paths = read_settings().paths
    blocks = chains.open_store(paths.cache_dir)
    beside = [1, 2, 3, 4, 50, 51, 52, 53]
    chains.write_all(blocks, chains.chain(list(range(1, 9))))
    chains.write_all(blocks, chains.chain(beside)[1:])
    blocks.close()
    with closing(SessionService(paths.sessions_db, paths.cache_dir, block_size=chains.BLOCK_SIZE)) as store:
        session = store.create_session(title="Trip")
        add(store, session, "q", "a", ids=[[1, 2, 3, 4], [5, 6, 7, 8, 9]])
        question, _ = store.all_turns(session.id)
        store.create_branch(session.id, leaf_id=question.id, name="beside")
        answer = replace(question, id=new_turn_id(), parent_id=question.id, role=Role.ASSISTANT)
        for fingerprint in (chains.FINGERPRINT.hex(), "ab" * 32):
            ids = (*beside[4:], len(fingerprint))
            one = replace(answer, id=new_turn_id(), token_ids=ids, fingerprint=fingerprint)
            branch = store.branch(session.id, "beside")
            answer = replace(answer, parent_id=store.add_turns(branch, (one,)).leaf_id)
        store.pin(session.id, is_pinned=True)
        assert len([*home.rglob("*.keep")]) == 2
    with closing(
        SessionService(paths.sessions_db, paths.cache_dir, limit_bytes=1, block_size=chains.BLOCK_SIZE)
    ) as store:
        assert store.remove_branch(session.id, "beside").freed_blocks == 1
    with closing(CacheAdmin(paths.cache_dir)) as admin:
        assert {block.token_ids for block in admin.kept_blocks()} == {(1, 2, 3, 4), (5, 6, 7, 8)}
    (left,) = home.rglob("*.keep")
    assert len(left.read_bytes()) == 32 + 2 * 32 + 16
