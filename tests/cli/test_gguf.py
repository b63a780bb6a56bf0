"""A GGUF file in the place of a model directory."""

import os
import shutil
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from gguf import GGMLQuantizationType as Kind

from kvchat.app.config import read_settings
from kvchat.app.model_location import located
from kvchat.starter import __path__ as starter_path
from tests.cli.command_line import Run
from tests.engine.memory.chains import chain, open_store
from tests.engine.models.gguf_writer import tiny, write_gguf
from tests.fork_server import ForkServer

pytestmark = pytest.mark.cpu

STARTER = Path(*starter_path) / "model"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A tiny model with the starter's tokenizer beside it."""
    write_gguf(tiny("llama", vocab_size=2560), tmp_path / "tiny.gguf", "llama", Kind.Q4_0)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(STARTER / name, tmp_path)
    return tmp_path / "tiny.gguf"


def words(model: Path, *arguments: str) -> list[str]:
    return ["ask", "-m", str(model), "--max-tokens", "4", *arguments]


@pytest.mark.usefixtures("loading_pays")
def test_a_file_answers_and_its_conversation_goes_on_from_disk(
    model: Path, tmp_path: Path, run: Run, fork_server: ForkServer
) -> None:
    """In a process of its own, and then in this one."""
    environment = {**os.environ, "KVCHAT_HOME": str(tmp_path / "home")}
    first = fork_server.run(*words(model, "--new", "tiny", "hello"), environ=environment)
    assert first.returncode == 0, first.stderr
    (made,) = (path for path in (tmp_path / "home/cache/weights").iterdir() if path.is_dir())
    before = (made / "model.safetensors").stat().st_mtime_ns
    assert "from disk" in run.err(*words(model, "-s", "tiny", "again"))
    assert (made / "model.safetensors").stat().st_mtime_ns == before


def test_where_a_command_looks_for_a_file_blocks_make_room_for_it_under_the_limit_that_is_set(
    model: Path, tmp_path: Path
) -> None:
    """Before any store is opened, which would have them make room too."""
    settings = read_settings(environ={"KVCHAT_HOME": str(tmp_path / "home")}, cwd=tmp_path)
    cache_dir = settings.paths.cache_dir
    with closing(open_store(cache_dir)) as store:
        assert all(store.write([(block.header, block.payload)]) for block in chain(list(range(40))))
    assert list((cache_dir / "blocks").rglob("*.safetensors"))
    limited = replace(settings, engine=replace(settings.engine, disk_bytes=model.stat().st_size // 2))
    made = located(limited, str(model)).path
    assert (made / "model.safetensors").stat().st_size > model.stat().st_size // 2
    assert not list((cache_dir / "blocks").rglob("*.safetensors"))


def test_a_damaged_file_is_refused_with_what_to_do(model: Path, run: Run) -> None:
    model.write_bytes(model.read_bytes()[:5000])
    assert "not a whole GGUF file" in run.err(*words(model, "hello"), code=4)
    model.write_bytes(b"something else")
    assert "not a GGUF file" in run.err(*words(model, "hello"), code=4)
