"""The whole product, killed at random moments: what was shown is stored, and what is used is right."""

import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from contextlib import closing
from pathlib import Path
from random import Random
from time import sleep
from typing import Any

import pytest

from kvchat.engine.memory.disk.cache_admin import CacheAdmin
from kvchat.session.store import SessionStore

pytestmark = [pytest.mark.cpu, pytest.mark.slow]

NUM_KILLS = 24
LONGEST_PAUSE_S = 0.2
COMMAND = (sys.executable, "-m", "kvchat")


def killed(home: Path, words: list[str], num_lines: int, pause_s: float) -> list[dict[str, Any]]:
    """Run a command, kill it behind some lines of its output, and return what it said."""
    environment = os.environ | {"KVCHAT_HOME": str(home)}
    with subprocess.Popen(
        [*COMMAND, *words], stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, env=environment
    ) as child:
        assert child.stdout is not None
        heard = [child.stdout.readline() for _ in range(num_lines)]
        sleep(pause_s)
        child.kill()
        heard += child.stdout.readlines()
    said = [json.loads(line) for line in heard if line.startswith(b"{") and line.endswith(b"\n")]
    return [value for value in said if "event" in value]


def ask(home: Path, words: list[str]) -> dict[str, Any]:
    environment = os.environ | {"KVCHAT_HOME": str(home)}
    done = subprocess.run(
        [*COMMAND, "ask", "--json", *words],
        capture_output=True,
        stdin=subprocess.DEVNULL,
        env=environment,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    event: dict[str, Any] = json.loads(done.stdout)
    return event


def test_whatever_moment_it_is_killed_at_what_was_shown_is_there_and_what_is_used_is_right(
    tiny_model: Path, home: Path, tmp_path: Path
) -> None:
    """Answers, resumes, imports, collections of one home; then sessions go on as without a cache."""
    random, counts = Random(11), Counter[str]()
    model = ["-m", str(tiny_model), "--temperature", "0"]
    bundle = _bundle(tmp_path, model)
    shown: dict[str, str] = {}
    for number in range(NUM_KILLS):
        kind = random.choice(["ask", "ask", "resume", "import", "gc"]) if shown else "ask"
        name = random.choice(sorted(shown)) if kind == "resume" else f"session-{number}"
        question = f"{number}: tell me of {' and '.join(str(random.randrange(99)) for _ in range(40))}"
        words = {
            "ask": ["ask", *model, "--ndjson", "--max-tokens", "400", "--new", name, question],
            "resume": ["ask", *model, "--ndjson", "--max-tokens", "400", "-s", name, question],
            "import": ["import", str(bundle), "-m", str(tiny_model), "--json"],
            "gc": ["cache", "gc", "--json"],
        }[kind]
        said = killed(home, words, random.randrange(0, 60), random.uniform(0, LONGEST_PAUSE_S))
        text = "".join(event["text"] for event in said if event["event"] == "text")
        counts[kind] += 1
        if text:
            shown[name] = text
        _check(home, name, text)
    assert shown
    resumed = _compare_with_a_cold_cache(home, tmp_path / "cold", sorted(shown), model)
    print(f"{sum(counts.values())} kills: {dict(counts)}; {resumed} sessions went on with what was cached")
    assert resumed > 0


def _bundle(tmp_path: Path, model: list[str]) -> Path:
    elsewhere = tmp_path / "elsewhere"
    ask(elsewhere, [*model, "--max-tokens", "40", "--new", "packed", "What is in a bundle? " * 20])
    target = tmp_path / "packed.kvchat"
    environment = os.environ | {"KVCHAT_HOME": str(elsewhere)}
    subprocess.run([*COMMAND, "export", "packed", "-o", str(target)], env=environment, check=True)
    return target


def _check(home: Path, name: str, text: str) -> None:
    """What was shown is stored, nothing is damaged, and the totals are those of the files."""
    if (home / "data" / "sessions.db").exists():
        with closing(SessionStore(home / "data" / "sessions.db")) as store:
            turns = [turn for one in store.list_sessions() for turn in store.all_turns(one.session.id)]
            assert not any(turn.damaged for turn in turns)
            if text:
                stored = store.all_turns(store.find(name).id)
                assert any(turn.text.startswith(text) for turn in stored)
    if (home / "cache" / "blocks").exists():
        with closing(CacheAdmin(home / "cache")) as admin:
            sizes = [path.stat().st_size for path in (home / "cache" / "blocks").rglob("*.safetensors")]
            assert (admin.usage().num_blocks, admin.usage().num_bytes) == (len(sizes), sum(sizes))
        assert not list((home / "cache" / "quarantine").glob("*"))
        assert not list((home / "cache" / "blocks").rglob("*.tmp"))


def _compare_with_a_cold_cache(home: Path, cold: Path, names: list[str], model: list[str]) -> int:
    """Ask every session once more, here and where no block is; return how many had blocks here."""
    shutil.copytree(home, cold)
    num_cached = 0
    for name in names[:4]:
        words = [*model, "--max-tokens", "12", "-s", name, "And now?"]
        shutil.rmtree(cold / "cache", ignore_errors=True)  # sessions share what they begin with
        warm, other = ask(home, words), ask(cold, words)
        assert warm["text"] == other["text"]
        assert warm["usage"]["prompt_tokens"] == other["usage"]["prompt_tokens"]
        assert other["usage"]["cached_tokens"] == 0
        num_cached += warm["usage"]["cached_tokens"] > 0
    return num_cached
