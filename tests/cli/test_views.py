"""A conversation over a view, from the command line: labelled wherever shown, taken up again, removed."""

from pathlib import Path
from typing import Any

import pytest

from kvchat.engine.api.view import View
from kvchat.engine.memory.disk.pinned_blocks import note_view, used_views
from tests.cli.command_line import Run

pytestmark = [pytest.mark.cpu, pytest.mark.usefixtures("loading_pays")]

TEXT = " ".join(f"The door of house {number} is {'red' if number % 3 else 'blue'}." for number in range(40))


@pytest.fixture(params=["window:64", "snapkv:64"])
def cache_format(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


def ask(run: Run, model: Path, cache_format: str, *words: str) -> dict[str, Any]:
    words = ("--cache-format", cache_format, "--max-tokens", "8", *words)
    answer: dict[str, Any] = run.json("ask", "-m", str(model), *words)
    return answer


def num_blocks(home: Path) -> int:
    return len(list((home / "cache" / "blocks").rglob("*.safetensors")))


def test_a_session_is_taken_up_over_its_view_shown_as_approximate_and_removed_with_all_its_blocks(
    run: Run, tiny_model: Path, home: Path, cache_format: str
) -> None:
    first = ask(run, tiny_model, cache_format, "--new", "doors", TEXT)
    assert (first["exact"], first["usage"]["cached_tokens"]) == (False, 0)
    second = ask(run, tiny_model, cache_format, "-s", "doors", "Which door is blue?")
    known = first["usage"]["prompt_tokens"] + first["usage"]["completion_tokens"] - 1
    assert second["usage"]["cached_tokens"] >= known - 1
    assert [one["exact"] for one in run.json("sessions", "list")] == [False]
    assert "approximate" in run("sessions", "list")[1]
    assert "(approximate)" in run("sessions", "show", "doors")[1]
    before = num_blocks(home)
    assert run("cache", "gc")[0] == 0
    assert num_blocks(home) == before > 0  # a living session refers to all of them
    (row,) = run.json("cache", "ls")
    assert (row["kind"], row["name"], row["own_bytes"]) == ("session", "doors", row["num_bytes"])
    assert row["num_bytes"] == run.json("cache", "status")["disk_bytes"]
    assert run("cache", "evict", "doors")[0] == 0
    assert num_blocks(home) == 0
    ask(run, tiny_model, cache_format, "-s", "doors", "And which is red?")
    assert num_blocks(home) > 0
    assert run("sessions", "rm", "doors", "--yes")[0] == 0
    assert num_blocks(home) == 0


def test_a_bundle_says_that_answers_are_approximate_and_carries_exact_blocks_alone(
    run: Run, tiny_model: Path, cache_format: str, tmp_path: Path
) -> None:
    ask(run, tiny_model, cache_format, "--new", "doors", TEXT)
    bundle = tmp_path / "doors.kvchat"
    assert run("export", "doors", "-o", str(bundle))[0] == 0
    assert run("sessions", "rm", "doors", "--yes")[0] == 0
    assert run("import", str(bundle), "-m", str(tiny_model))[0] == 0
    assert [one["exact"] for one in run.json("sessions", "list")] == [False]
    exact = ask(run, tiny_model, "exact", "-s", "doors", "Which door is blue?")
    assert exact["usage"]["prompt_tokens"] > exact["usage"]["cached_tokens"]


@pytest.mark.parametrize(("shadow", "sees_all"), [("shadow:640:forced", True), ("shadow:64:forced", False)])
def test_a_session_behind_a_shadow_goes_on_elsewhere_on_the_blocks_of_its_bundle(
    shadow: str, sees_all: bool, run: Run, tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the words that are told where all is computed anew; and with those told here, if each step sees
    all: else what was generated token by token is chosen for as one stretch there.
    """
    greedy = ("--temperature", "0")
    first = ask(run, tiny_model, shadow, *greedy, "--new", "doors", TEXT)
    bundles = {"there": tmp_path / "with.kvchat", "bare": tmp_path / "without.kvchat"}
    assert run("export", "doors", "-o", str(bundles["there"]))[0] == 0
    assert run("export", "doors", "--no-kv", "-o", str(bundles["bare"]))[0] == 0
    stayed = ask(run, tiny_model, shadow, *greedy, "-s", "doors", "Which door is blue?")
    told = {}
    for elsewhere, bundle in bundles.items():
        monkeypatch.setenv("KVCHAT_HOME", str(tmp_path / elsewhere))
        assert run("import", str(bundle), "-m", str(tiny_model))[0] == 0
        told[elsewhere] = ask(run, tiny_model, shadow, *greedy, "-s", "doors", "Which door is blue?")
    assert told["there"]["usage"]["cached_tokens"] == first["usage"]["prompt_tokens"] // 64 * 64 > 0
    assert told["bare"]["usage"]["cached_tokens"] == 0
    assert told["there"]["text"] == told["bare"]["text"]
    assert not sees_all or told["there"]["text"] == stayed["text"]
    assert [one["exact"] for one in told.values()] == [False, False]


def test_the_views_of_a_directory_are_known_by_name(tmp_path: Path) -> None:
    assert used_views(tmp_path) == ()
    views = (View(rule="snapkv", budget=64, is_pyramid=True), View(rule="window", budget=128))
    for view in (*views, *views):
        note_view(tmp_path, view)
    for stray in ("window", "window:0", "int4", ".tmp"):
        (tmp_path / "views" / stray).touch()
    assert used_views(tmp_path) == (views[0], View(rule="window"), views[1])
    assert (tmp_path / "views").stat().st_mode & 0o777 == 0o700
