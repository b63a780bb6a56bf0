"""The bundles that ship with kvchat are of the model that ships with it, and go on at once."""

import io
import json
from pathlib import Path
from typing import Any

import pytest

from kvchat.cli.main import run
from kvchat.session.bundle.reader import read_bundle
from tools.starter.examples import DIRECTORY, EXAMPLES, make_examples

pytestmark = pytest.mark.cpu

NAMES = [example.title for example in EXAMPLES]


def call(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    """Run a command line in this process and return what it prints as JSON."""
    capsys.readouterr()
    assert run([*words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("name", NAMES)
def test_an_example_goes_on_with_the_starter_and_computes_only_what_is_new(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same answer comes without its KV: `make starter` makes the examples again with the model."""
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO()))
    answers = {}
    for kv in ("untrusted", "none"):
        monkeypatch.setenv("KVCHAT_HOME", str(tmp_path / kv))
        words = ["--no-kv"] if kv == "none" else []
        (imported,) = call(capsys, "import", str(DIRECTORY / f"{name}.kvchat"), *words)
        assert (imported["kv"], imported["differing"]) == (kv, [])
        turns = call(capsys, "sessions", "show", name)["turns"]
        answers[kv] = call(capsys, "ask", "-s", name, "--temperature", "0", "What is my name?")
        num_known = sum(len(turn["token_ids"]) for turn in turns)
        expected = num_known - 1 if kv == "untrusted" else 0
        assert answers[kv]["usage"]["cached_tokens"] == expected
    assert answers["untrusted"]["text"] == answers["none"]["text"]


@pytest.mark.parametrize("name", NAMES)
def test_an_example_is_small_whole_and_tells_nothing_of_where_it_was_made(name: str) -> None:
    path = DIRECTORY / f"{name}.kvchat"
    bundle = read_bundle(path)
    assert path.stat().st_size < 1 << 20
    assert (bundle.manifest.title, bundle.manifest.model) == (name, "starter")
    assert bundle.num_blocks > 0
    assert str(Path.home()).encode() + b"/" not in path.read_bytes()


def test_one_example_has_two_branches() -> None:
    bundle = read_bundle(DIRECTORY / "two-ways.kvchat")
    assert [branch.name for branch in bundle.manifest.branches] == ["main", "main-2"]


@pytest.mark.slow
def test_making_the_examples_twice_gives_the_same_files(tmp_path: Path) -> None:
    first, second = (make_examples(tmp_path / name) for name in ("one", "two"))
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]
