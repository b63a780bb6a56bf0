"""A session of a model with recurrent layers takes its states along: each is a place to go on from."""

from pathlib import Path

import pytest

from tests.cli.command_line import Run
from tests.engine.recurrent_models import save_recurrent
from tests.tiny_models import write_model

pytestmark = pytest.mark.cpu


@pytest.mark.usefixtures("loading_pays")
def test_another_conversation_goes_on_behind_the_same_system_prompt_and_file(
    tmp_path: Path, home: Path, run: Run
) -> None:
    model = str(write_model(save_recurrent("Qwen3_5", tmp_path / "recurrent")))
    file = tmp_path / "notes.txt"
    file.write_text("A block holds the keys and values of 64 tokens. " * 12)
    ask = ["ask", "-m", model, "--max-tokens", "4", "--system", "Be brief. " * 30]

    def cached(*words: str) -> tuple[int, int]:
        usage = run.json(*ask, *words)["usage"]
        return usage["cached_tokens"], usage["computed_tokens"]

    assert cached("-f", str(file), "What?")[0] == 0
    num_cached, num_computed = cached("-f", str(file), "Why is that so?")
    assert num_cached >= 64, "the system prompt"
    assert num_computed > 100, "and no more"
    assert cached("-f", str(file), "And what follows?")[1] < 100, "the one before has left the file's state"


def test_an_imported_session_is_forked_as_cheaply_as_the_one_that_was_exported(
    tmp_path: Path, home: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = str(write_model(save_recurrent("Qwen3_5", tmp_path / "recurrent")))
    ask = run.with_words("ask", "-m", model, "--max-tokens", "8").json
    ask("--new", "demo", "Hello! " + "What is a block? " * 5)
    for number in range(3):
        ask("-s", "demo", f"And then? {number} " + "Tell me about a cache. " * 10)
    bundle = tmp_path / "demo.kvchat"
    assert run("export", "demo", "-o", str(bundle))[0] == 0
    own = ask("-s", "demo", "--edit", "2", "And now?")["usage"]
    assert own["computed_tokens"] < 40, "it goes on behind the answer before"
    monkeypatch.setenv("KVCHAT_HOME", str(tmp_path / "elsewhere"))
    run.out("import", str(bundle), "-m", model)
    assert ask("-s", "demo", "--edit", "2", "And now?")["usage"] == own
