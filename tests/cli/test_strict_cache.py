"""`--strict-cache`: what was computed before is reused to the token, or the question is not answered."""

import json
import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from tests.cli.command_line import Run
from tests.cli.homes import turns_of
from tests.damage import flip

pytestmark = [pytest.mark.cpu, pytest.mark.usefixtures("loading_pays")]

DOCUMENT = " ".join(f"{number} is a number." for number in range(20))


@pytest.fixture
def ask(default_model: None, run: Run) -> Run:
    return run.with_words("ask", "--max-tokens", "4", "--json")


def test_a_session_and_a_pack_that_are_kept_are_answered(ask: Run, run: Run) -> None:
    assert ask("--strict-cache", "--new", "demo", DOCUMENT)[0] == 0, "a new session has nothing to reuse"
    assert ask("--strict-cache", "-s", "demo", "and?")[0] == 0
    assert ask("--strict-cache", "-s", "demo", "--edit", "1", "or?")[0] == 0
    assert run("pack", "make", "rules", "--system", DOCUMENT)[0] == 0
    assert ask("--strict-cache", "--pack", "rules", "which?")[0] == 0


def test_kv_that_is_gone_or_of_another_format_is_refused_and_nothing_is_stored(ask: Run, home: Path) -> None:
    ask("--new", "demo", DOCUMENT)
    before = turns_of(home)
    code, out, err = ask("--strict-cache", "-s", "demo", "--cache-format", "int8", "and?")
    assert code == 7
    assert json.loads(out)["error"] == "CacheMissed"
    assert "--strict-cache" in err
    shutil.rmtree(home / "cache")
    assert ask("--strict-cache", "-s", "demo", "and?")[0] == 7
    assert turns_of(home) == before
    assert ask("-s", "demo", "and?")[0] == 0


def test_kv_of_other_weights_is_refused_and_nothing_is_stored(
    ask: Run, home: Path, tiny_model: Path, tmp_path: Path
) -> None:
    other = shutil.copytree(tiny_model, tmp_path / "other")
    tensors = load_file(other / "model.safetensors")
    tensors["model.norm.weight"] *= 2
    save_file(tensors, other / "model.safetensors", metadata={"format": "pt"})
    ask("--new", "demo", DOCUMENT)
    before = turns_of(home)
    ask = ask.with_words("-s", "demo", "-m", str(other))
    assert ask.json("--strict-cache", "and?", code=7)["error"] == "CacheMissed"
    assert turns_of(home) == before
    assert ask("and?")[0] == 0
    assert ask("--strict-cache", "and?")[0] == 0, "now it has KV of these"


@pytest.mark.parametrize(("words", "has_tail"), [((), False), (("-n", "2"), True)])
def test_a_damaged_block_is_refused_though_it_was_there_before(
    words: tuple[str, ...], has_tail: bool, ask: Run, home: Path
) -> None:
    """It is found out when it is read: the answer is stopped, and not shown; damage of a tail, before."""
    ask("--new", "demo", DOCUMENT)
    files = list((home / "cache" / "blocks").rglob("*.safetensors"))
    whole_bytes = max(file.stat().st_size for file in files)
    for file in files:
        if file.stat().st_size == whole_bytes or not has_tail:
            flip(file)
    code, out, _ = ask("--strict-cache", *words, "-s", "demo", "and?")
    assert code == 7
    assert json.loads(out)["event"] == "error"
    assert len(out.splitlines()) == 1
    assert ask("-s", "demo", "and?")[0] == 0, "what is damaged is computed anew"
