"""An import that finds no room: the text comes in whole or not at all, and what is missing of KV is told."""

import json
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kvchat.app.config import Settings, read_settings
from kvchat.app.open_store import open_store
from kvchat.app.retention.session_removal import SessionService
from kvchat.cli.commands.transfer.bundle_compatibility import Agreement
from kvchat.cli.commands.transfer.import_ import BundleFile, Imported, Importer
from kvchat.cli.main import run
from kvchat.cli.output.streams import Status
from kvchat.engine.memory.disk.io import SYSTEM, SystemFiles
from kvchat.session.bundle.reader import read_bundle
from tests.engine.memory.disk.failing_files import FailingFiles
from tests.engine.memory.disk.small_disk import HastyFiles
from tests.engine.memory.disk.test_pinned_on_full_disk import no_file_longer_than
from tests.session.bundle.bundles import write_storable

pytestmark = [pytest.mark.pure, pytest.mark.long]

MOST_OPERATIONS = 80
LIMITS = (0, 40_000, 90_000, 160_000, 250_000, 10**6)
LONG = "what was said " * 7000


def source(directory: Path) -> BundleFile:
    """Return a bundle of one turn and two blocks, as if its model were here."""
    path = directory / "small.kvchat"
    if not path.exists():
        write_storable(path)
    return BundleFile(path=path, bundle=read_bundle(path), agreement=Agreement(model="small"))


def bring(
    settings: Settings, store: SessionService, bundle: BundleFile, files: SystemFiles = SYSTEM
) -> Imported:
    (imported,) = Importer(settings, store, Status(quiet=True), files=files).bring(bundle)
    return imported


def left_over(home: Path) -> list[Path]:
    """Return what only a killed or refused writer leaves."""
    return [path for path in home.rglob(".*") if path.is_file()]


@pytest.mark.parametrize("is_passing", [True, False])
def test_wherever_the_disk_refuses_a_block_the_text_is_there_and_nothing_is_left_over(
    is_passing: bool, quick_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Trap 25: at every operation of writing blocks in turn, once or from then on."""
    num_told, bundle = 0, source(quick_path)
    for at in range(MOST_OPERATIONS):
        monkeypatch.setenv("KVCHAT_HOME", str(quick_path / str(at)))
        settings, files = read_settings(), FailingFiles()
        with closing(open_store(settings)) as store:
            files.fail(at, is_passing=is_passing)
            found = bring(settings, store, replace(bundle, bundle=read_bundle(bundle.path)), files)
            has_refused = files.has_refused
            files.fail(None)
            assert [turn.text for turn in store.all_turns(found.session.id)] == ["Grüße!"]
            if found.num_blocks < found.of_blocks:
                num_told += 1
                assert "space" in found.reasons[0]
            assert store.collect().freed_blocks == 0, "a block of nobody was left"
            assert left_over(quick_path / str(at) / "cache") == []
        if not has_refused:
            break
        if at % 5 == 0:
            with closing(open_store(settings)) as store:
                again = bring(settings, store, bundle, files)
            assert (again.num_blocks, again.kv) == (found.of_blocks, "untrusted")
    assert found.num_blocks == found.of_blocks == 2
    assert num_told > 10


@pytest.fixture
def imported(capsys: pytest.CaptureFixture[str], home: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Import a file into a home where a conversation is, with no file longer than allowed; return the code,
    what was told, and the titles that are there then.
    """

    def call(path: Path, num_bytes: int) -> tuple[int, str, list[str]]:
        monkeypatch.setenv("KVCHAT_HOME", str(home / str(num_bytes)))
        with closing(open_store(read_settings())) as store:
            store.create_session(title="before")
        capsys.readouterr()
        with no_file_longer_than(num_bytes):
            code = run(["import", str(path), "--json"])
        told = capsys.readouterr().out
        with closing(open_store(read_settings())) as store:
            titles = sorted(summary.session.title for summary in store.list_sessions())
        return code, told, titles

    return call


def write_transcripts(path: Path) -> None:
    """Write three conversations of another program, each of them long."""
    node = {"parent": None, "children": []}
    said = {"author": {"role": "user"}, "content": {"content_type": "text", "parts": [LONG]}}
    path.write_text(
        json.dumps(
            [
                {"title": title, "mapping": {"a": node | {"id": "a", "message": said}}, "current_node": "a"}
                for title in ("one", "three", "two")
            ]
        )
    )


@pytest.mark.parametrize(
    ("name", "write", "titles"),
    [
        ("small.kvchat", write_storable, ["demo"]),
        ("conversations.json", write_transcripts, ["one", "three", "two"]),
    ],
)
def test_a_file_whose_text_finds_no_room_is_refused_whole_and_comes_in_whole_later(
    name: str, write: Callable[[Path], object], titles: list[str], tmp_path: Path, imported: Any
) -> None:
    path = tmp_path / name
    write(path)
    codes = set()
    for num_bytes in LIMITS:
        code, told, found = imported(path, num_bytes)
        codes.add(code)
        if code:
            assert (code, found) == (1, ["before"])
            assert "space" in json.loads(told)["message"]
        else:
            assert found == sorted(["before", *titles])
    assert codes == {0, 1}


class Collecting(HastyFiles):
    """Has somebody else collect garbage whenever a block is begun."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.freed_blocks = 0

    def create(self, path: Path) -> int:
        descriptor = super().create(path)
        with closing(open_store(self._settings)) as other:
            self.freed_blocks += other.collect().freed_blocks
        return descriptor


def test_a_collection_beside_an_import_takes_none_of_its_blocks(tmp_path: Path) -> None:
    settings = read_settings()
    files = Collecting(settings)
    with closing(open_store(settings)) as store:
        found = bring(settings, store, source(tmp_path), files)
        assert (files.freed_blocks, found.num_blocks, found.reasons) == (0, found.of_blocks, ())
        store.delete_session(found.session.id)
    with closing(open_store(settings)) as store:
        assert store.collect().freed_blocks == 0, "they went with their session"
