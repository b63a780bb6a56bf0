"""`kvchat cache ls` and `evict`: whose blocks are on disk, and their removal without a word of text."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.cli.command_line import Run

pytestmark = [pytest.mark.cpu, pytest.mark.usefixtures("loading_pays")]

SHARED = " ".join(f"{number} is a number." for number in range(20))
Kvchat = Callable[..., Any]


@pytest.fixture
def kvchat(default_model: None, run: Run) -> Kvchat:
    """Run a command line and return what it prints as JSON."""
    return run.json


@pytest.fixture
def talks(kvchat: Kvchat) -> None:
    """Two sessions that share their first blocks, and a pack."""
    for name in ("one", "two"):
        kvchat("ask", "--max-tokens", "4", "--new", name, f"{SHARED} {name}")
    kvchat("pack", "make", "rules", "--system", f"Rules: {SHARED}")


def rows(kvchat: Kvchat) -> dict[str, Any]:
    return {row["name"]: row for row in kvchat("cache", "ls")}


@pytest.mark.usefixtures("talks")
def test_everybody_is_listed_with_what_only_they_have(kvchat: Kvchat, run: Run) -> None:
    found = rows(kvchat)
    assert {name: row["kind"] for name, row in found.items()} == {
        "one": "session",
        "two": "session",
        "rules": "pack",
    }
    for name in ("one", "two"):
        assert 0 < found[name]["own_bytes"] < found[name]["num_bytes"]
    assert found["rules"]["own_bytes"] == found["rules"]["num_bytes"]
    total = kvchat("cache", "status")["disk_bytes"]
    shared = found["one"]["num_bytes"] - found["one"]["own_bytes"]
    assert sum(row["own_bytes"] for row in found.values()) + shared == total
    assert "shared" in run("cache", "ls")[1]
    assert [row["name"] for row in run.lines("cache", "ls", "--ndjson")] == list(found)


@pytest.mark.usefixtures("talks")
def test_evicting_a_session_frees_what_it_alone_has_and_keeps_its_words(kvchat: Kvchat) -> None:
    before = rows(kvchat)
    freed = kvchat("cache", "evict", "one")
    assert freed["freed_bytes"] == before["one"]["own_bytes"]
    assert rows(kvchat)["two"]["num_bytes"] == before["two"]["num_bytes"]
    assert len(kvchat("sessions", "show", "one")["turns"]) == 2
    again = kvchat("ask", "--max-tokens", "4", "-s", "one", "and?")
    assert 0 < again["usage"]["cached_tokens"] < again["usage"]["prompt_tokens"] - 5


@pytest.mark.usefixtures("talks")
def test_evicting_to_a_size_and_all_spares_packs_alone(kvchat: Kvchat, run: Run) -> None:
    pack = rows(kvchat)["rules"]
    limit = pack["num_bytes"] * 3 // 2
    kvchat("cache", "evict", "--to", str(limit))
    assert pack["num_bytes"] <= kvchat("cache", "status")["disk_bytes"] <= limit
    kvchat("cache", "evict", "--all")
    assert list(rows(kvchat)) == ["rules"]
    assert kvchat("cache", "status")["disk_bytes"] == pack["num_bytes"]
    for words in ((), ("one", "--all"), ("--to", "much")):
        assert run("cache", "evict", *words)[0] == 2
    assert run("cache", "evict", "three")[0] == 5


def test_blocks_of_nobody_are_listed_as_such(kvchat: Kvchat, run: Run) -> None:
    assert kvchat("cache", "ls") == []
    kvchat("ask", "--max-tokens", "4", "--new", "one", SHARED)
    (row,) = kvchat("cache", "ls")
    path = run("cache", "path")[1].strip()
    assert run("sessions", "rm", "one", "--yes", "--cache-dir", path + "-elsewhere")[0] == 0
    (left,) = kvchat("cache", "ls")
    assert (left["kind"], left["num_bytes"]) == ("nobody", row["num_bytes"])
