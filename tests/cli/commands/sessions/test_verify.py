"""`kvchat sessions verify` and `kvchat cache verify`: what is looked at, said and written."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cli.command_line import Run

pytestmark = pytest.mark.cpu

WORDS = "remember the sea " * 40
Call = Callable[..., Any]


@pytest.fixture
def call(run: Run, tiny_model: Path) -> Call:
    """Run a command on the tiny model and return what it prints as JSON."""

    def one(*words: str) -> Any:
        return run.json(*words, "-m", str(tiny_model))

    return one


def files_of(home: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in (home / "cache" / "blocks").rglob("*.safetensors")}


@pytest.mark.covering(1)
@pytest.mark.parametrize("command", [("sessions", "verify", "demo"), ("cache", "verify")])
@pytest.mark.parametrize("view", ["window:64", "snapkv:64"])
def test_verifying_over_a_view_writes_nothing_under_exact_names_and_accuses_nobody(
    view: str, command: tuple[str, ...], call: Call, home: Path
) -> None:
    call("ask", "--max-tokens", "8", "--new", "demo", WORDS)
    before = files_of(home)
    found = call(*command, "--all", "--cache-format", view)
    assert (found["different"], found["verified"]) == (0, found["blocks"])
    assert found["blocks"] > 4
    assert files_of(home) == before


def test_converted_kv_is_not_held_to_what_is_computed_in_its_format(
    call: Call, run: Run, home: Path, tiny_model: Path
) -> None:
    """It was made of exact KV, so it differs, and nobody forged it."""
    call("ask", "--max-tokens", "8", "--new", "demo", WORDS)
    assert run("sessions", "convert", "demo", "int8", "--yes")[0] == 0
    before = files_of(home)
    for words in ((), ("--cache-format", "int8")):
        assert "was converted from exact to int8" in run.err(
            "sessions", "verify", "demo", "-m", str(tiny_model), *words, code=2
        )
    found = call("cache", "verify", "--all", "--cache-format", "int8")
    assert (found["different"], found["wrong_logits"], found["converted_sessions"]) == (0, 0, 1)
    assert files_of(home) == before


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")
def test_a_session_is_verified_with_the_adapter_that_it_was_computed_with(
    call: Call, tiny_model: Path, tmp_path: Path
) -> None:
    pytest.importorskip("peft", reason="LoRA adapters are an extra: pip install 'kvchat[lora]'")
    from tests.engine.test_adapters import save_adapter

    adapter = save_adapter(tiny_model, tmp_path / "adapter")
    call("ask", "--max-tokens", "8", "--adapter", str(adapter), "--new", "demo", WORDS)
    found = call("sessions", "verify", "demo", "--all")
    assert found["verified"] == found["blocks"] > 4
    assert (found["different"], found["wrong_logits"]) == (0, 0)
