"""`kvchat plan` tells bytes from a config alone."""

import json
from pathlib import Path

import pytest

from tests.cli.command_line import Run
from tests.engine.formats.test_kv_size import DEEPSEEK_V3, QWEN_72B

pytestmark = pytest.mark.pure


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(DEEPSEEK_V3))
    return path


def test_a_table_names_every_way_with_its_assumption(config: Path, run: Run) -> None:
    lines = run.out("plan", str(config), "--context", "128k").splitlines()
    assert lines[0] == f"{config}: deepseek_v3, 61 layers (61 full), bfloat16"
    own = next(line for line in lines if line.startswith("latent (MLA)"))
    assert own.split("  ")[-1] == "61 layers x (512 latent + 64 rope key) x 2 B"
    assert all(part in own for part in ("70,272 B", "8.578 GiB", "as it is"))
    figures = {
        "latent in FP8 (approximate)": "40,016 B",
        "8 key-value heads (GQA)": "249,856 B",
        "a key-value head for every query head (MHA)": "3,997,696 B",
        "one key-value head (MQA)": "31,232 B",
        "latent alone": "7.625 GiB",
        "two vectors of the model's width": "213.5 GiB",
    }
    for name, figure in figures.items():
        assert any(line.startswith(name) and figure in line for line in lines), name
    assert any("213.5 GiB" in line and "often quoted" in line for line in lines)


def test_json_has_the_same_figures(config: Path, run: Run) -> None:
    value = run.json("plan", str(config.parent), "--context", "131072")
    assert value["context_len"] == 131_072
    assert value["sizes"][0]["token_bytes"] == 70_272
    assert value["by_transformers"] is False


def test_the_starter_is_planned_by_its_name(run: Run) -> None:
    assert "3 that see 128 tokens, 3 full" in run.out("plan", "starter", "--context", "4k")


def test_what_a_config_leaves_open_is_completed_by_transformers(config: Path, run: Run) -> None:
    config.write_text(json.dumps({"model_type": "gemma3_text", "num_hidden_layers": 12}))
    _, out, err = run("plan", str(config), "--json")
    assert "as transformers has it" in err
    value = json.loads(out)
    assert value["by_transformers"] is True
    assert value["visible"].count(None) == 2


def test_windows_of_some_layers_only_are_as_transformers_has_them(config: Path, run: Run) -> None:
    windows = {"use_sliding_window": True, "sliding_window": 4096, "max_window_layers": 70}
    config.write_text(json.dumps(QWEN_72B | windows))
    _, out, err = run("plan", str(config), "--json")
    assert "as transformers has it" in err
    assert json.loads(out)["visible"] == [None] * 70 + [4096] * 10


def test_a_type_of_numbers_that_the_config_does_not_name_is_said_to_be_assumed(
    config: Path, run: Run
) -> None:
    assert "counted as" not in run.err("plan", str(config))
    config.write_text(json.dumps({"model_type": "gpt2", "n_layer": 12, "n_embd": 768, "n_head": 12}))
    assert "names no dtype; counted as bfloat16" in run.err("plan", str(config))


def test_a_layer_that_attends_twice_keeps_two_latents(config: Path, run: Run) -> None:
    changes = {"model_type": "longcat_flash", "num_layers": 28}
    written = {name: value for name, value in DEEPSEEK_V3.items() if name != "num_hidden_layers"}
    config.write_text(json.dumps(written | changes))
    assert run.json("plan", str(config))["sizes"][0]["token_bytes"] == 56 * 576 * 2


@pytest.mark.parametrize(
    ("words", "code", "part"),
    [
        (["plan", "nowhere"], 4, "There is no config"),
        (["plan", "starter", "--context", "-3"], 2, "--context must be 1 or more"),
        (["plan", "starter", "--context", "many"], 2, "--context must be a whole number"),
    ],
)
def test_what_cannot_be_planned_says_why(words: list[str], code: int, part: str, run: Run) -> None:
    assert part in run.err(*words, code=code)


@pytest.mark.parametrize("text", ["[]", "{", '{"model_type": "llama"}'])
def test_a_file_that_is_no_config_is_refused(text: str, config: Path, run: Run) -> None:
    config.write_text(text)
    assert "kvchat:" in run.err("plan", str(config), code=4)


def test_a_gguf_file_is_told_from_a_damaged_config(tmp_path: Path, run: Run) -> None:
    (tmp_path / "tiny.gguf").write_bytes(b"GGUF\xbd")
    assert "config.json, or the Hugging Face id, of the model that it was made from" in run.err(
        "plan", str(tmp_path / "tiny.gguf"), code=4
    )


def format_rows(run: Run, config: Path) -> list[str]:
    lines = run.out("plan", str(config), "--context", "128k").splitlines()
    return [line for line in lines if line.startswith("--cache-format")]


def test_every_format_that_the_model_can_take_has_a_row(config: Path, run: Run) -> None:
    rows = format_rows(run, config)
    assert [row.split()[1] for row in rows] == ["fp8"]  # a latent has no other form
    config.write_text(json.dumps(QWEN_72B))
    rows = format_rows(run, config)
    assert {"int4", "window:1024", "keydiff:1024", "snapkv:1024:pyramid"} < {row.split()[1] for row in rows}
    assert all(row.endswith("; approximate") for row in rows)
    formats = run.json("plan", str(config), "--context", "128k")["formats"]
    assert [one["name"] for one in formats if one["is_exact"]] == ["exact"]
    assert len(formats) == len(rows) + 1


def test_formats_may_be_chosen_also_unusual_ones(config: Path, run: Run) -> None:
    config.write_text(json.dumps(QWEN_72B))
    formats = run.json("plan", str(config), "--format", "k=int8,v=int4", "--format", "int4")["formats"]
    assert [one["name"] for one in formats] == ["exact", "k=int8,v=int4", "int4"]
    sizes = [one["context_bytes"] for one in formats]
    assert sizes == sorted(sizes, reverse=True)
    assert "cache format 'int3' is unknown" in run.err("plan", str(config), "--format", "int3", code=3)
    config.write_text(json.dumps(DEEPSEEK_V3))
    assert "int4" in run.err("plan", str(config), "--format", "int4", code=3), "a latent has no such form"


def test_the_row_of_a_shadow_says_what_lies_beside_blocks_that_stay(config: Path, run: Run) -> None:
    config.write_text(json.dumps(QWEN_72B))
    rows = format_rows(run, config)
    (shadow,) = [row for row in rows if row.split()[1] == "shadow:1024"]
    assert "GiB of all beside its blocks; approximate" in shadow
    assert not any("beside" in row for row in rows if row != shadow)
