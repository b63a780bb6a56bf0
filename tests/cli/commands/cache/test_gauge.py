"""`kvchat cache gauge` on conversations and on the built-in questions, as a person types it."""

import json
import shutil
from contextlib import closing
from math import inf
from pathlib import Path
from xml.etree import ElementTree

import pytest

from kvchat.app.config import read_settings
from kvchat.app.conversion.child_process import gauged, read_figures
from kvchat.cli.main import run as run_command
from kvchat.engine.api.loss import FormatLoss, GaugeReport, Loss
from kvchat.errors import EngineFailed
from kvchat.session.store import SessionStore
from kvchat.text.gauge import figures_of
from tests.cli.command_line import Run

pytestmark = pytest.mark.cpu


@pytest.fixture
def asked(run: Run, tiny_model: Path) -> Run:
    words = ["ask", "-q", "-m", str(tiny_model), "--max-tokens", "30", "--new", "demo"]
    code, _, told = run(*words, "remember the sea " * 40)
    assert code == 0, told
    return run


def test_a_conversation_is_measured_in_every_format_and_one_is_recommended(
    asked: Run, tmp_path: Path
) -> None:
    picture = tmp_path / "loss.svg"
    out = asked.out("cache", "gauge", "demo", "--last", "20", "--keep", "0", "--svg", str(picture))
    for name in ("fp8", "int8", "k=int8,v=int4", "int4", "k=int4,v=int2", "int2"):
        assert any(line.split()[0] == name for line in out.splitlines())
    assert "--cache-format int2 saves" in out.splitlines()[-1]
    assert ElementTree.parse(picture).getroot().tag.endswith("svg")


def test_json_has_every_figure_layers_and_the_advice(asked: Run) -> None:
    out = asked.out(
        *("cache", "gauge", "demo", "--json", "--last", "10", "--converted"),
        *("--cache-format", "int8", "--cache-format", "int2", "--layers", "int2", "--keep", "1"),
    )
    report = json.loads(out)
    assert [one["cache_format"] for one in report["formats"]] == ["int8", "int2"]
    assert [one["layer"] for one in report["layers"]] == [1, 3]
    assert report["num_replayed"] == 10
    assert all(one["is_converted"] for one in report["formats"])
    assert report["formats"][0]["num_bytes"] < report["exact_bytes"]
    assert report["recommended"] in ("int8", "int2", "exact")


def test_what_cannot_be_measured_is_said(asked: Run, run: Run) -> None:
    assert run("cache", "gauge", "nothing-of-that-name")[0] == 5
    assert "int3" in run.err("cache", "gauge", "demo", "--cache-format", "int3", code=3)
    assert "--svg" in run.err("cache", "gauge", "demo", "--svg", "/nowhere/at/all.svg", "--last", "5", code=1)


def test_what_is_no_format_is_refused_before_a_session_or_a_model_is_looked_for(run: Run) -> None:
    for option in ("--cache-format", "--layers"):
        assert "'int3' is unknown" in run.err(
            "cache", "gauge", "nothing-of-that-name", option, "int3", code=3
        )


def test_a_conversation_without_an_answer_has_nothing_to_replay(
    run: Run, tiny_model: Path, home: Path
) -> None:
    with closing(SessionStore(home / "data" / "sessions.db")) as store:
        store.create_session(title="empty", model=str(tiny_model))
    assert "send a message" in run.err("cache", "gauge", "empty", code=2)


@pytest.mark.slow
def test_the_built_in_questions_are_asked_of_the_starter_model(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["cache", "gauge", "--quick", "--json", "--cache-format", "int8"]) == 0
    exact, int8 = json.loads(capsys.readouterr().out)
    assert exact["all"]["num_questions"] == int8["all"]["num_questions"] == 62
    assert exact["all"]["exact"] > 0.8
    assert int8["all"]["lost"] <= 2.0
    assert int8["answers"]["agreement"] > 0.99


@pytest.mark.usefixtures("quick_children")
def test_the_window_measures_in_a_process_of_its_own_and_gets_the_figures_of_the_words_it_shows(
    asked: Run, tmp_path: Path
) -> None:
    """What it says is what the command says; a refusal is told, not shown as a table."""
    with pytest.raises(EngineFailed, match="int3"):
        gauged(read_settings({}), "demo", "main", "int3")
    found = gauged(read_settings({}), "demo", "main", "int2")
    (one,) = found.report.formats
    assert asked.out("cache", "gauge", "demo", "--cache-format", "int2") == found.words + "\n"
    assert (one.cache_format, found.kept_agreement) == ("int2", 0.99)
    path = tmp_path / "figures.json"
    words = "cache", "gauge", "demo", "--last", "10", "--layers", "int2", "--figures", str(path), "--json"
    code, out, _ = asked(*words, "--cache-format", "int2")
    assert (code, json.loads(path.read_text())) == (0, json.loads(out))
    again, kept = read_figures(out)
    assert figures_of(again, json.loads(out)["session"], kept) == json.loads(out)
    assert "--figures" in asked.err(
        *words[:5], "--figures", "/nowhere/at/all.json", "--cache-format", "int8", code=1
    )


def test_an_endless_loss_comes_back_from_json_as_one() -> None:
    loss = Loss(
        num_tokens=3, agreement=0.5, divergence=inf, worst_divergence=inf, perplexity_ratio=inf, recall=None
    )
    one = FormatLoss(
        cache_format="int2", num_bytes=5, token_bytes=1.0, loss=loss, is_converted=False, seconds=0.1
    )
    report = GaugeReport(
        model="m", num_tokens=9, num_replayed=3, exact_bytes=9, exact_token_bytes=2.0, formats=(one,)
    )
    written = json.dumps(figures_of(report, "s1", 0.9))
    assert "Infinity" not in written
    assert read_figures(written) == (report, 0.9)


def test_the_form_of_weights_can_be_named(asked: Run, tiny_model: Path) -> None:
    before = asked("cache", "gauge", "demo", "--last", "5", "--cache-format", "int8", "--json")
    out = asked.out(
        *("cache", "gauge", "demo", "--last", "5", "--cache-format", "int8", "--json", "--weights", "int4")
    )
    assert json.loads(out)["formats"][0]["loss"] != json.loads(before[1])["formats"][0]["loss"]
    assert asked("sessions", "convert", "demo", "int4", "--weights", "int4", "--dry-run")[0] == 0
    assert "other weights" in asked.err(
        "sessions", "verify", "demo", "-m", str(tiny_model), "--weights", "int4", code=7
    )


def test_built_in_questions_are_not_asked_of_a_model_without_their_tokenizer(
    run: Run, tiny_model: Path, tmp_path: Path
) -> None:
    other = Path(shutil.copytree(tiny_model, tmp_path / "other"))
    (other / "tokenizer.json").unlink()
    assert "starter" in run.err("cache", "gauge", "-m", str(other), "--quick", code=2)
