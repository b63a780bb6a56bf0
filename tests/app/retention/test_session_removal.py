"""What goes with sessions that are removed."""

from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path

import pytest

from kvchat.app.composition import Kvchat, start_worker
from kvchat.app.config import read_settings
from kvchat.app.interface_host import InterfaceHost
from kvchat.app.retention.session_removal import SessionService
from kvchat.errors import StorageError
from tests.cli.secret_home import files_with

pytestmark = pytest.mark.pure


@pytest.mark.parametrize(
    "sweep", [lambda store, one: store.collect(), lambda store, one: store.remove_sessions([one])]
)
def test_what_was_not_sent_to_a_session_that_is_gone_goes_with_the_next_sweep(
    tmp_path: Path, sweep: Callable[..., object]
) -> None:
    with closing(SessionService(tmp_path / "sessions.db", tmp_path / "cache")) as store:
        here, one, gone = (store.create_session(title=title).id for title in ("here", "one", "gone"))
        store.delete_session(gone)
        for owner in (here, gone, None):
            store.unsent.keep(owner, "half a thought")
        sweep(store, one)
        assert store.unsent.owners() == {here}
        assert not store.unsent.holds(gone)
        for owner in (None, here):
            with store.unsent.lent(owner) as draft:
                assert draft.text == "half a thought"


def test_text_is_deleted_also_where_the_cache_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "blocks").write_text("a file where the blocks should be")
    with closing(SessionService(tmp_path / "sessions.db", tmp_path / "cache")) as store:
        doomed, kept = (store.create_session(title=title).id for title in ("quixotry", "kept"))
        store.delete_session(doomed)
        assert [one.session.id for one in store.list_sessions()] == [kept]
        assert not files_with(tmp_path, b"quixotry")
        (told,) = store.still_readable()
        assert "KV of what was deleted is still on disk" in told
        assert "cache gc" in told
        (tmp_path / "cache" / "blocks").unlink()
        store.delete_session(kept)
        assert not store.still_readable()


def test_what_a_cache_that_cannot_be_used_would_free_is_said_before_it_is_deleted(tmp_path: Path) -> None:
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "blocks").write_text("a file where the blocks should be")
    with closing(SessionService(tmp_path / "sessions.db", tmp_path / "cache")) as store:
        session = store.create_session(title="doomed")
        host = InterfaceHost(read_settings(), Kvchat(read_settings(), store, start_worker), None, None)
        told = host.freed_by_deleting(session.id)
        assert told.startswith("its KV would stay on disk: ")
        assert "`kvchat cache gc` removes it once the cache can be used again" in told


def test_a_cache_that_cannot_be_looked_for_is_told_by_whoever_opens_it(tmp_path: Path) -> None:
    """As below a directory that may not be searched: looking is refused, which is not to be nowhere."""
    with closing(SessionService(tmp_path / "sessions.db", Unsearchable(tmp_path / "cache"))) as store:
        session = store.create_session(title="doomed")
        for look in (lambda: store.would_remove([session.id]), store.collect):
            with suppress(StorageError):
                look()
        store.delete_session(session.id)
        assert not store.list_sessions()


class Unsearchable(type(Path())):  # type: ignore[misc]
    """A path that cannot be asked about, also where a person may do everything."""

    def is_dir(self) -> bool:
        raise PermissionError(13, "Permission denied", str(self))
