"""What the blocks on disk amount to, told without a model."""

import time
from dataclasses import replace
from pathlib import Path

import pytest

from kvchat.session.store import SessionStore
from kvchat.session.tree import MAIN
from tests.cli.command_line import Run
from tests.engine.memory import chains
from tests.session.turns import question

pytestmark = pytest.mark.pure


def test_status_tells_bytes_and_blocks_by_model(home: Path, run: Run) -> None:
    chains.put_blocks(home / "cache", chains.chain([1, 2, 3, 4, 5]))
    status = run.json("cache", "status")
    files = list((home / "cache" / "blocks").rglob("*.safetensors"))
    assert status["disk_bytes"] == sum(file.stat().st_size for file in files)
    usage = status["fingerprints"][chains.FINGERPRINT.hex()]
    assert (usage["num_blocks"], usage["num_tails"]) == (2, 1)
    told = run.out("cache")
    assert chains.FINGERPRINT.hex()[:12] in told
    assert "1 full block and 1 tail" in told


def test_status_creates_nothing_where_there_is_nothing(home: Path, run: Run) -> None:
    assert "disk  0 B" in run.out("cache", "status")
    assert not home.exists()


def test_the_path_is_what_the_settings_say(tmp_path: Path, run: Run) -> None:
    assert run.out("cache", "path", "--cache-dir", str(tmp_path / "kv")) == f"{tmp_path / 'kv'}\n"


def test_status_tells_what_was_written_and_the_day_s_limit(
    home: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = chains.open_store(home / "cache", clock=time.time)
    chains.write_all(disk, chains.chain([1, 2, 3, 4, 5]))
    written = disk.written()
    disk.close()
    monkeypatch.setenv("KVCHAT_KV_DISK_DAILY_BYTES", "1GiB")
    status = run.json("cache", "status")
    assert status["written"] == {"today": written.today, "total": written.total}
    assert status["daily_limit_bytes"] == 1 << 30
    assert status["problem"] is None
    assert "of 1.0 GiB today" in run.out("cache")


def test_a_cache_that_cannot_be_looked_at_is_unknown_and_says_what_to_do(home: Path, run: Run) -> None:
    (home / "cache").mkdir(parents=True)
    (home / "cache" / "blocks").write_text("a file")
    told = run.out("cache", "status")
    assert "disk  unknown" in told
    assert "Choose another cache directory" in told
    status = run.json("cache", "status")
    assert status["disk_bytes"] is None
    assert str(home / "cache") in status["problem"]


def test_gc_removes_what_no_session_refers_to_and_nothing_else(home: Path, run: Run) -> None:
    store = SessionStore(home / "data" / "sessions.db")
    session = store.create_session(title="kept")
    asked = replace(question(session.id, ids=[1, 2, 3, 4, 5]), fingerprint=chains.FINGERPRINT.hex())
    store.add_turns(store.branch(session.id, MAIN), (asked,))
    store.close()
    disk = chains.open_store(home / "cache")
    chains.write_all(disk, chains.chain([1, 2, 3, 4, 5]))
    chains.write_all(disk, chains.chain([9, 9, 9, 9, 9]))
    disk.close()
    assert run.json("cache", "gc")["freed_blocks"] == 2
    disk = chains.open_store(home / "cache")
    assert disk.has_all([block.key for block in chains.chain([1, 2, 3, 4, 5])], chains.FULL) == [True, True]
    assert disk.usage().num_blocks == 2
    disk.close()
    assert run.out("cache", "gc") == "removed 0 blocks, 0 B\n"
