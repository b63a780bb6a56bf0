"""`kvchat config`: where each value came from, and one setting changed in a file that a person wrote."""

import json
import os
import stat
import tomllib
from pathlib import Path

import pytest

from kvchat.app.config import KEYS
from kvchat.app.config_edit import with_setting
from kvchat.errors import ConfigError
from tests.cli.command_line import Run

pytestmark = pytest.mark.pure


def shown(run: Run, *words: str) -> dict[str, dict[str, object]]:
    settings: dict[str, dict[str, object]] = run.json("config", "show", *words)["settings"]
    return settings


def test_show_says_where_each_value_came_from(
    home: Path, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    home.mkdir()
    (home / "config.toml").write_text('model = "a"\nsystem = "a"\n[sampling]\nseed = 1\ntop_k = 1\n')
    (tmp_path / "work" / ".kvchat.toml").write_text('system = "b"\n[sampling]\nseed = 2\n')
    monkeypatch.setenv("KVCHAT_SEED", "3")
    monkeypatch.setenv("KVCHAT_TEMPERATURE", "0.9")
    found = shown(run, "--temperature", "0.5")
    assert found["model"] == {"value": "a", "from": str(home / "config.toml")}
    assert found["system"] == {"value": "b", "from": str(tmp_path / "work" / ".kvchat.toml")}
    assert found["sampling.seed"] == {"value": 3, "from": "KVCHAT_SEED"}
    assert found["sampling.temperature"] == {"value": 0.5, "from": "flag"}
    assert found["sampling.top_k"] == {"value": 1, "from": str(home / "config.toml")}
    assert found["sampling.top_p"] == {"value": 1.0, "from": "default"}
    assert set(found) == set(KEYS)


def test_set_makes_a_private_file_that_is_read_back(home: Path, run: Run) -> None:
    for name, value in (("model", "here/it is"), ("sampling.top_k", "40"), ("engine.device_bytes", "2GiB")):
        assert run("config", "set", name, value)[0] == 0
    assert run("config", "set", "display.stats", "no")[0] == 0
    file = home / "config.toml"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert tomllib.loads(file.read_text()) == {
        "model": "here/it is",
        "sampling": {"top_k": 40},
        "engine": {"device_bytes": "2GiB"},
        "display": {"stats": False},
    }
    found = shown(run)
    assert (found["sampling.top_k"]["value"], found["engine.device_bytes"]["value"]) == (40, 2**31)


@pytest.mark.parametrize(
    ("words", "exit_code", "told"),
    [
        (["sampling.temprature", "1"], 2, "did you mean 'sampling.temperature'"),
        (["sampling.temperature", "warm"], 2, "must be a number"),
        (["sampling.top_p", "7"], 3, "top_p"),
        (["model"], 2, "give a value"),
        (["model", "a", "--unset"], 2, "give a value"),
    ],
)
def test_set_refuses_what_could_not_be_read_and_leaves_the_file(
    words: list[str], exit_code: int, told: str, home: Path, run: Run
) -> None:
    home.mkdir()
    (home / "config.toml").write_text('model = "a"  # mine\n')
    assert told in run.err("config", "set", *words, code=exit_code)
    assert (home / "config.toml").read_text() == 'model = "a"  # mine\n'


WRITTEN = """\
# mine
model = "a"

[sampling]   # greedy
seed = 1     # always
# top_k = 3

[engine]
device = "cpu"
"""


@pytest.mark.parametrize(
    ("name", "value", "after"),
    [
        ("model", '"b"', WRITTEN.replace('"a"', '"b"')),
        ("sampling.top_k", "5", WRITTEN.replace("# top_k = 3\n", "# top_k = 3\ntop_k = 5\n")),
        ("sampling.seed", None, WRITTEN.replace("seed = 1     # always\n", "")),
        ("display.stats", "false", WRITTEN + "\n[display]\nstats = false\n"),
        ("system", '"x"', WRITTEN.replace('"a"\n', '"a"\nsystem = "x"\n')),
        ("sampling.top_p", None, WRITTEN),
    ],
)
def test_a_change_leaves_order_and_comments_as_they_were(name: str, value: str | None, after: str) -> None:
    assert with_setting(WRITTEN, name, value) == after


@pytest.mark.parametrize(
    "text", ['system = """\nlong\ntext"""\n', "sampling = {seed = 1}\n", '"system" = """\nmodel = 1\n"""\n']
)
def test_what_cannot_be_changed_safely_is_refused(text: str) -> None:
    name = "sampling.seed" if "sampling" in text else "system"
    with pytest.raises(ConfigError, match="config edit"):
        with_setting(text, name, "3" if "sampling" in text else '"x"')


def test_edit_opens_the_editor_and_says_what_is_wrong_afterwards(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    editor = tmp_path / "editor"
    editor.write_text('#!/bin/sh\necho \'modle = "a"\' >> "$1"\n')
    editor.chmod(0o700)
    monkeypatch.setenv("EDITOR", str(editor))
    assert "did you mean 'model'" in run.err("config", "edit", code=3)
    monkeypatch.setenv("EDITOR", "/no/such/editor")
    assert run("config", "edit")[0] == 2


def test_the_schema_names_every_setting_and_its_kind(run: Run) -> None:
    properties = json.loads(run.out("config", "schema"))["properties"]
    for name in KEYS:
        section, _, key = name.rpartition(".")
        assert key in (properties[section]["properties"] if section else properties)
    assert properties["sampling"]["properties"]["top_k"]["type"] == ["integer", "string"]
    assert "cuda" in properties["engine"]["properties"]["device"]["enum"]
    assert properties["sampling"]["additionalProperties"] is False


def test_a_setting_is_on_the_medium_before_the_file_has_its_name(
    monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    files, fsync = [], os.fsync

    def noted(descriptor: int) -> None:
        files.append(stat.S_ISREG(os.fstat(descriptor).st_mode))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", noted)
    assert run("config", "set", "sampling.top_k", "7")[0] == 0
    assert files.count(True) == 1
