"""A model's name leads to a directory that can be loaded, or to a message that says what to do."""

import json
import os
import socket
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from kvchat.engine.models.locate import locate_model
from kvchat.errors import ModelNotFound, ModelUnreadable, UnsupportedModel
from tests.engine.models.checkpoint_files import write_config, write_model, write_sharded_model
from tests.engine.models.hub import COMMIT, running
from tests.patience import PATIENCE_S

pytestmark = [pytest.mark.pure, pytest.mark.long]

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("shards", [(), ("a.safetensors", "b.safetensors")])
def test_a_directory_is_found_under_its_name(tmp_path: Path, shards: tuple[str, ...]) -> None:
    path = tmp_path / "model"
    model_dir = write_sharded_model(path, shards) if shards else write_model(path)
    location = locate_model(str(model_dir))
    assert (location.name, location.path) == (str(model_dir), model_dir)


def test_a_name_that_is_nothing_says_what_was_tried_and_what_to_run(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound) as caught:
        locate_model(str(tmp_path / "nowhere"))
    assert str(tmp_path / "nowhere") in str(caught.value)
    assert "not a Hugging Face id" in str(caught.value)
    assert "-m starter" in str(caught.value)


@pytest.mark.parametrize("name", ["gpt2", "../a/b", "a/b/c", "-a/b", "https://a.b/c", "a b/c", ""])
def test_what_does_not_look_like_a_hub_id_never_reaches_the_network(name: str, tmp_path: Path) -> None:
    with running({}) as hub:
        run = _locate(name, tmp_path, endpoint=hub.url)
        assert run["error"] in ("ModelNotFound", "ModelUnreadable")
        assert hub.asked == []


@pytest.mark.parametrize("text", ["", "{", "[]", '"llama"', "\x00", "{}", '{"model_type": 3}', "[" * 100_000])
def test_a_config_that_is_no_config_is_named(tmp_path: Path, text: str) -> None:
    model_dir = write_model(tmp_path / "model")
    (model_dir / "config.json").write_text(text)
    with pytest.raises(ModelUnreadable, match=r"config\.json"):
        locate_model(str(model_dir))


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "consolidated.00.pth", "model.ckpt"])
def test_pickled_weights_are_never_opened(tmp_path: Path, name: str) -> None:
    model_dir = write_model(tmp_path / "model")
    (model_dir / "model.safetensors").rename(model_dir / name)
    with pytest.raises(ModelUnreadable, match=f"{name}: a pickle can run any code"):
        locate_model(str(model_dir))


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    model_dir = write_sharded_model(tmp_path / "model", ("a.safetensors", "b.safetensors"))
    (model_dir / "b.safetensors").unlink()
    with pytest.raises(ModelUnreadable, match=r"b\.safetensors is missing \(1 of 2"):
        locate_model(str(model_dir))


@pytest.mark.parametrize("name", ["../outside.safetensors", "/etc/passwd", "model.bin", 3, None])
def test_an_index_cannot_lead_out_of_its_directory(tmp_path: Path, name: object) -> None:
    model_dir = write_sharded_model(tmp_path / "model", ("a.safetensors", "b.safetensors"))
    write_model(tmp_path / "elsewhere")
    (tmp_path / "elsewhere" / "model.safetensors").rename(tmp_path / "outside.safetensors")
    index = {"weight_map": {"first": "a.safetensors", "second": name}}
    (model_dir / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ModelUnreadable, match="of its own directory"):
        locate_model(str(model_dir))


def test_weights_cut_short_anywhere_are_noticed(tmp_path: Path) -> None:
    model_dir = write_model(tmp_path / "model")
    path = model_dir / "model.safetensors"
    whole = path.read_bytes()
    for length in [*range(200), len(whole) // 2, len(whole) - 1]:
        path.write_bytes(whole[:length])
        with pytest.raises(ModelUnreadable, match="not a whole safetensors file"):
            locate_model(str(model_dir))


@pytest.mark.parametrize(
    "header", [b"[]", b"null", b"{}", b'{"a": 1}', b'{"a": {"data_offsets": [0]}}', b"[" * 9999]
)
def test_a_hostile_header_is_noticed(tmp_path: Path, header: bytes) -> None:
    model_dir = write_model(tmp_path / "model")
    (model_dir / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header)
    with pytest.raises(ModelUnreadable):
        locate_model(str(model_dir))


def test_a_model_that_brings_its_own_code_is_not_supported(tmp_path: Path) -> None:
    model_dir = write_model(tmp_path / "model")
    write_config(model_dir, model_type="homemade", auto_map={"AutoModel": "modeling_homemade.Homemade"})
    with pytest.raises(UnsupportedModel, match="brings its own code"):
        locate_model(str(model_dir))


def test_code_beside_a_model_that_transformers_knows_is_simply_not_used(tmp_path: Path) -> None:
    model_dir = write_model(tmp_path / "model")
    write_config(model_dir, model_type="qwen3", auto_map={"AutoModel": "modeling_qwen.Qwen"})
    assert locate_model(str(model_dir)).path == model_dir


class TestHub:
    """The network is asked only for a hub id that is not cached; each run is a process of its own."""

    NAME = "someone/small-model"

    def test_a_cached_model_is_found_without_the_network(self, tmp_path: Path) -> None:
        snapshot = self._cache(tmp_path)
        with running({}) as hub:
            run = _locate(self.NAME, tmp_path, endpoint=hub.url)
            assert run["path"] == str(snapshot)
            assert hub.asked == []

    def test_a_model_that_is_not_cached_is_downloaded_once(self, tmp_path: Path) -> None:
        model_dir = write_model(tmp_path / "served")
        (model_dir / "tokenizer.json").write_text("{}")
        (model_dir / "pytorch_model.bin").write_bytes(b"pickle")
        (model_dir / "modeling_own.py").write_text("raise SystemExit")
        (model_dir / "original").mkdir()
        (model_dir / "original" / "consolidated.safetensors").write_bytes(b"again")
        with running({self.NAME: model_dir}) as hub:
            run = _locate(self.NAME, tmp_path, endpoint=hub.url)
        path = Path(run["path"])
        assert path == self._snapshot(tmp_path)
        assert {file.name for file in path.iterdir()} == {
            "config.json",
            "model.safetensors",
            "tokenizer.json",
        }
        with running({}) as hub:
            assert _locate(self.NAME, tmp_path, endpoint=hub.url)["path"] == str(path)
            assert hub.asked == []

    def test_a_download_tells_how_much_is_here_and_ends_where_that_raises(self, tmp_path: Path) -> None:
        model_dir = write_model(tmp_path / "served")
        num_bytes = sum(file.stat().st_size for file in model_dir.iterdir())
        with running({self.NAME: model_dir}) as hub:
            stopped = _locate(self.NAME, tmp_path, endpoint=hub.url, most_bytes=0)
            assert (stopped["error"], stopped["message"]) == ("UsageError", "enough")
            assert "path" in _locate(self.NAME, tmp_path, endpoint=hub.url, most_bytes=num_bytes)

    def test_a_download_that_stopped_half_way_goes_on(self, tmp_path: Path) -> None:
        model_dir = write_model(tmp_path / "served")
        snapshot = self._cache(tmp_path)
        (snapshot / "model.safetensors").unlink()
        with running({self.NAME: model_dir}) as hub:
            run = _locate(self.NAME, tmp_path, endpoint=hub.url)
        assert run["path"] == str(snapshot)

    def test_a_model_the_hub_does_not_have_is_told_apart_from_a_dead_network(self, tmp_path: Path) -> None:
        with running({}) as hub:
            run = _locate(self.NAME, tmp_path, endpoint=hub.url)
        assert run["error"] == "ModelNotFound"
        assert "The network was reachable, but the hub has no such model" in run["message"]

    def test_a_dead_network_is_said_with_everything_that_was_tried(self, tmp_path: Path) -> None:
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))  # bound and not listening: refuses
            run = _locate(self.NAME, tmp_path, endpoint=f"http://127.0.0.1:{taken.getsockname()[1]}")
        assert run["error"] == "ModelNotFound"
        assert str(ROOT / self.NAME) in run["message"]
        assert f"Hugging Face id '{self.NAME}'" in run["message"]
        assert "The network was not reachable" in run["message"]
        assert "-m starter" in run["message"]

    def test_a_network_that_never_answers_is_given_up(self, tmp_path: Path) -> None:
        with socket.socket() as silent:
            silent.bind(("127.0.0.1", 0))
            silent.listen()
            run = _locate(
                self.NAME, tmp_path, endpoint=f"http://127.0.0.1:{silent.getsockname()[1]}", limit_s=0.5
            )
        assert run["error"] == "ModelNotFound"
        assert "did not answer within" in run["message"]

    def test_offline_means_offline(self, tmp_path: Path) -> None:
        with running({self.NAME: write_model(tmp_path / "served")}) as hub:
            run = _locate(self.NAME, tmp_path, endpoint=hub.url, offline=True)
            assert hub.asked == []
        assert run["error"] == "ModelNotFound"
        assert "HF_HUB_OFFLINE is set" in run["message"]

    def test_a_model_without_safetensors_is_not_downloaded(self, tmp_path: Path) -> None:
        model_dir = write_model(tmp_path / "served")
        (model_dir / "model.safetensors").rename(model_dir / "pytorch_model.bin")
        with running({self.NAME: model_dir}) as hub:
            run = _locate(self.NAME, tmp_path, endpoint=hub.url)
            assert not any("/resolve/" in path for path in hub.asked)
        assert run["error"] == "ModelNotFound"
        assert "without safetensors weights" in run["message"]

    def _snapshot(self, home: Path) -> Path:
        return home / "hub" / f"models--{self.NAME.replace('/', '--')}" / "snapshots" / COMMIT

    def _cache(self, home: Path) -> Path:
        snapshot = write_model(self._snapshot(home))
        refs = snapshot.parents[1] / "refs"
        refs.mkdir()
        (refs / "main").write_text(COMMIT)
        return snapshot


def _locate(
    name: str,
    home: Path,
    *,
    endpoint: str,
    offline: bool = False,
    limit_s: float = PATIENCE_S,
    most_bytes: int | None = None,
) -> dict[str, str]:
    """Locate a model in a process whose Hugging Face home and hub are the given ones; a download of more than
    `most_bytes` is stopped, and has to reach them.
    """
    script = """
import json, sys
from kvchat.engine.models.locate import locate_model
from kvchat.errors import KvchatError, UsageError
most_bytes, seen = json.loads(sys.argv[3]), [0]
def progress(num_bytes, total_bytes):
    assert num_bytes <= total_bytes
    seen.append(num_bytes)
    if num_bytes > most_bytes:
        raise UsageError("enough")
telling = None if most_bytes is None else progress
try:
    found = locate_model(sys.argv[1], network_timeout_s=float(sys.argv[2]), progress=telling)
    answer = {"path": str(found.path)}
    assert most_bytes in (None, max(seen))
except KvchatError as error:
    answer = {"error": type(error).__name__, "message": str(error)}
assert "torch" not in sys.modules
print(json.dumps(answer))
"""
    environment = os.environ | {
        "HF_HOME": str(home),
        "HF_ENDPOINT": endpoint,
        "HF_HUB_OFFLINE": str(int(offline)),
        "HF_HUB_DISABLE_XET": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "NO_PROXY": "127.0.0.1",
    }
    command = [sys.executable, "-c", script, name, str(limit_s), json.dumps(most_bytes)]
    run = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)
