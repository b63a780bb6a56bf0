"""`kvchat cache ls` and `evict`: whose blocks are on disk, and their removal without a word of text."""

from typing import Any

import pytest

from tests.cli.command_line import Run

pytestmark = [pytest.mark.cpu, pytest.mark.usefixtures("loading_pays", "default_model")]

SHARED = " ".join(f"{number} is a number." for number in range(20))


@pytest.fixture
def talks(default_model: None, run: Run) -> None:
    """Two sessions that share their first blocks, and a pack."""
    for name in ("one", "two"):
        run.json("ask", "--max-tokens", "4", "--new", name, f"{SHARED} {name}")
    run.json("pack", "make", "rules", "--system", f"Rules: {SHARED}")


def rows(run: Run) -> dict[str, Any]:
    return {row["name"]: row for row in run.json("cache", "ls")}


@pytest.mark.usefixtures("talks")
def test_everybody_is_listed_with_what_only_they_have(run: Run) -> None:
    found = rows(run)
    assert {name: row["kind"] for name, row in found.items()} == {
        "one": "session",
        "two": "session",
        "rules": "pack",
    }
    for name in ("one", "two"):
        assert 0 < found[name]["own_bytes"] < found[name]["num_bytes"]
    assert found["rules"]["own_bytes"] == found["rules"]["num_bytes"]
    total = run.json("cache", "status")["disk_bytes"]
    shared = found["one"]["num_bytes"] - found["one"]["own_bytes"]
    assert sum(row["own_bytes"] for row in found.values()) + shared == total
    assert "shared" in run("cache", "ls")[1]
    assert [row["name"] for row in run.lines("cache", "ls", "--ndjson")] == list(found)


@pytest.mark.usefixtures("talks")
def test_evicting_a_session_frees_what_it_alone_has_and_keeps_its_words(run: Run) -> None:
    before = rows(run)
    freed = run.json("cache", "evict", "one")
    assert freed["freed_bytes"] == before["one"]["own_bytes"]
    assert rows(run)["two"]["num_bytes"] == before["two"]["num_bytes"]
    assert len(run.json("sessions", "show", "one")["turns"]) == 2
    again = run.json("ask", "--max-tokens", "4", "-s", "one", "and?")
    assert 0 < again["usage"]["cached_tokens"] < again["usage"]["prompt_tokens"] - 5


@pytest.mark.usefixtures("talks")
def test_evicting_to_a_size_and_all_spares_packs_alone(run: Run) -> None:
    pack = rows(run)["rules"]
    limit = pack["num_bytes"] * 3 // 2
    run.json("cache", "evict", "--to", str(limit))
    assert pack["num_bytes"] <= run.json("cache", "status")["disk_bytes"] <= limit
    run.json("cache", "evict", "--all")
    assert list(rows(run)) == ["rules"]
    assert run.json("cache", "status")["disk_bytes"] == pack["num_bytes"]
    for words in ((), ("one", "--all"), ("--to", "much")):
        assert run("cache", "evict", *words)[0] == 2
    assert run("cache", "evict", "three")[0] == 5


def test_blocks_of_nobody_are_listed_as_such(run: Run) -> None:
    assert run.json("cache", "ls") == []
    run.json("ask", "--max-tokens", "4", "--new", "one", SHARED)
    (row,) = run.json("cache", "ls")
    path = run("cache", "path")[1].strip()
    assert run("sessions", "rm", "one", "--yes", "--cache-dir", path + "-elsewhere")[0] == 0
    (left,) = run.json("cache", "ls")
    assert (left["kind"], left["num_bytes"]) == ("nobody", row["num_bytes"])
