"""`--strict-cache`: what was computed before is reused to the token, or the question is not answered."""

import json
import shutil
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from kvchat.app.config import read_settings
from kvchat.app.open_sessions import open_store
from tests.cli.command_line import Run

pytestmark = [pytest.mark.cpu, pytest.mark.usefixtures("loading_pays")]

DOCUMENT = " ".join(f"{number} is a number." for number in range(20))
Ask = Callable[..., tuple[int, str, str]]


@pytest.fixture
def ask(tiny_model: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> Ask:
    monkeypatch.setenv("KVCHAT_MODEL", str(tiny_model))

    def one(*words: str) -> tuple[int, str, str]:
        return run("ask", "--max-tokens", "4", "--json", *words)

    return one


def num_turns() -> int:
    with closing(open_store(read_settings())) as store:
        return len(store.all_turns(store.list_sessions()[0].session.id))


def event(ended: tuple[int, str, str]) -> Any:
    return json.loads(ended[1])


def test_a_session_and_a_pack_that_are_kept_are_answered(ask: Ask, run: Run) -> None:
    assert ask("--strict-cache", "--new", "demo", DOCUMENT)[0] == 0, "a new session has nothing to reuse"
    assert ask("--strict-cache", "-s", "demo", "and?")[0] == 0
    assert ask("--strict-cache", "-s", "demo", "--edit", "1", "or?")[0] == 0
    assert run("pack", "make", "rules", "--system", DOCUMENT)[0] == 0
    assert ask("--strict-cache", "--pack", "rules", "which?")[0] == 0


def test_kv_that_is_gone_or_of_another_format_is_refused_and_nothing_is_stored(ask: Ask, home: Path) -> None:
    ask("--new", "demo", DOCUMENT)
    before = num_turns()
    code, out, err = ask("--strict-cache", "-s", "demo", "--cache-format", "int8", "and?")
    assert code == 7
    assert json.loads(out)["error"] == "CacheMissed"
    assert "--strict-cache" in err
    shutil.rmtree(home / "cache")
    assert ask("--strict-cache", "-s", "demo", "and?")[0] == 7
    assert num_turns() == before
    assert ask("-s", "demo", "and?")[0] == 0


def test_a_damaged_block_is_refused_though_it_was_there_before(ask: Ask, home: Path) -> None:
    """It is found out when it is read: the answer is stopped, and not shown."""
    ask("--new", "demo", DOCUMENT)
    for file in (home / "cache" / "blocks").rglob("*.safetensors"):
        data = bytearray(file.read_bytes())
        data[-1] ^= 1
        file.write_bytes(data)
    code, out, _ = ask("--strict-cache", "-s", "demo", "and?")
    assert code == 7
    assert json.loads(out)["event"] == "error"
    assert len(out.splitlines()) == 1


def test_several_answers_are_held_to_it_when_blocks_are_read_too(ask: Ask, home: Path) -> None:
    """Damage of a whole block shows only then; the tail's does before."""
    ask("--new", "demo", DOCUMENT)
    files = list((home / "cache" / "blocks").rglob("*.safetensors"))
    whole_bytes = max(file.stat().st_size for file in files)
    for file in files:
        if file.stat().st_size == whole_bytes:
            data = bytearray(file.read_bytes())
            data[-1] ^= 1
            file.write_bytes(data)
    code, out, _ = ask("--strict-cache", "-n", "2", "-s", "demo", "and?")
    assert code == 7
    assert json.loads(out)["event"] == "error"
    assert len(out.splitlines()) == 1
