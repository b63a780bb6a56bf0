"""Directories are their owner's alone, whoever makes them."""

import os
import stat
from pathlib import Path

import pytest

from kvchat.platform.private_files import STALE_S, make_private, remove_unfinished, write_private

pytestmark = pytest.mark.pure


def test_a_directory_and_what_is_missing_above_it_are_made_for_their_owner_alone(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        made = make_private(tmp_path / "a" / "b")
    finally:
        os.umask(before)
    assert [stat.S_IMODE(path.stat().st_mode) for path in (made, made.parent)] == [0o700, 0o700]


def test_a_directory_that_is_there_stays_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o755)
    make_private(tmp_path / "open")
    assert stat.S_IMODE((tmp_path / "open").stat().st_mode) == 0o755


def test_a_file_in_the_way_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file"):
        make_private(tmp_path / "file" / "inside")


def test_a_file_is_its_owners_alone_and_on_the_medium_before_it_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, fsync = tmp_path / "new" / "file", os.fsync
    synced: list[tuple[bool, bool]] = []

    def noted(descriptor: int) -> None:
        synced.append((stat.S_ISREG(os.fstat(descriptor).st_mode), file.exists()))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", noted)
    before = os.umask(0)
    try:
        write_private(file, b"one")
    finally:
        os.umask(before)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert [existed for is_file, existed in synced if is_file] == [False]
    assert synced[-1] == (False, True), "its name is made durable last"
    write_private(file, b"two")
    assert file.read_bytes() == b"two"
    assert list(file.parent.iterdir()) == [file]


def test_what_killed_processes_left_half_written_goes_also_of_an_older_kvchat(tmp_path: Path) -> None:
    left = [tmp_path / name for name in (".rates.0123abcd", ".rates.json.4711.tmp")]
    kept = [tmp_path / name for name in ("rates.json", ".rates.89abcdef", ".rates.json.4712.tmp")]
    for file in (*left, *kept):
        file.write_text("")
    for file in left:
        os.utime(file, (0, file.stat().st_mtime - 2 * STALE_S))
    remove_unfinished(tmp_path)
    assert sorted(tmp_path.iterdir()) == sorted(kept)


def test_a_file_that_cannot_be_written_leaves_what_was_there_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "name" / "inside").mkdir(parents=True)
    with pytest.raises(OSError, match="name"):
        write_private(tmp_path / "name", b"one")
    assert [file.name for file in tmp_path.iterdir()] == ["name"]
