"""What is deleted leaves no KV on disk, whatever was on its way there."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from kvchat.app.composition import Kvchat, opened, start_worker
from kvchat.app.config import read_settings
from kvchat.app.open_store import open_store
from kvchat.chat.conversation import Conversation
from kvchat.chat.service import Chat
from kvchat.engine.api.ids import u32le
from kvchat.engine.api.inspection import InspectionRequest
from kvchat.engine.memory.disk.cache_admin import CacheAdmin
from kvchat.session.tree import path_token_ids
from tests.cli.secret_home import files_with
from tests.patience import wait_until

pytestmark = [pytest.mark.cpu, pytest.mark.usefixtures("loading_pays")]

LONG = " ".join(f"{number} is a number." for number in range(80))


@pytest.fixture
def kvchat(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Kvchat]:
    monkeypatch.setenv("KVCHAT_MODEL", str(tiny_model))
    monkeypatch.setenv("KVCHAT_MAX_TOKENS", "4")
    with opened(read_settings(), start_worker) as kvchat:
        yield kvchat


def talk(chat: Chat, title: str = "doomed") -> Conversation:
    conversation = chat.create(title)
    assert [*chat.send(conversation, f"{LONG} {title}")]
    return conversation


def block_files() -> set[Path]:
    return {*read_settings().paths.cache_dir.rglob("*.safetensors*")}


def wait_until_saved(kvchat: Kvchat, conversation: Conversation) -> None:
    """Wait for each block, however slow the disk is, and then for the tail."""
    ids = path_token_ids(conversation.turns) or ()
    request = InspectionRequest(token_ids=tuple(ids[: (len(ids) - 1) // 64 * 64]))
    assert kvchat.engine.inspect(request)
    wait_until(lambda: all(any(p.is_stored for p in one.places) for one in kvchat.engine.inspect(request)))
    kvchat.engine.drain_saves()


def test_a_conversation_that_is_deleted_at_once_leaves_no_block(kvchat: Kvchat) -> None:
    chat = kvchat.load(None, None)
    chat.close(conversation := talk(chat))
    chat.store.delete_session(conversation.session.id)
    assert not block_files()
    kvchat.close()
    assert not block_files()


def test_one_that_was_left_before_it_is_deleted_leaves_none_either(kvchat: Kvchat) -> None:
    """As the window does it: the session is left first, then the store deletes it."""
    chat = kvchat.load(None, None)
    kept = talk(chat, "kept")
    wait_until_saved(kvchat, kept)
    before = block_files()
    doomed = talk(chat)
    [*chat.send(doomed, f"{LONG} And then?")]
    chat.close(doomed)
    kvchat.store.delete_session(doomed.session.id)
    kvchat.close()
    assert block_files() == before
    assert kvchat.store.turns_to(kept.branch.leaf_id)


def test_an_aside_that_is_left_leaves_no_block_and_no_token(kvchat: Kvchat) -> None:
    chat, paths = kvchat.load(None, None), read_settings().paths
    conversation = talk(chat, "kept")
    aside = chat.fork(conversation, None, "aside")
    [*chat.send(aside, " ".join(f"Zeppelinsuppe {number}." for number in range(80)))]
    doomed = (b"Zeppelinsuppe", u32le((aside.turns[-2].token_ids or ())[64:80]))
    wait_until_saved(kvchat, aside)
    assert files_with(paths.cache_dir, *doomed)
    assert chat.variants.throw_away(aside, conversation)
    assert not files_with(paths.data_dir.parent, *doomed)
    assert kvchat.store.collect().freed_blocks == 0
    chat.close(conversation)
    kvchat.close()
    assert not files_with(paths.data_dir.parent, *doomed)


@pytest.mark.parametrize("is_left", [True, False], ids=["left first", "still open"])
def test_a_session_that_another_process_deletes_is_not_saved_again(kvchat: Kvchat, is_left: bool) -> None:
    chat = kvchat.load(None, None)
    conversation = talk(chat)
    wait_until_saved(kvchat, conversation)
    assert block_files()
    with closing(open_store(read_settings())) as other:
        other.remove_sessions([conversation.session.id])
    assert not block_files()
    if is_left:
        chat.close(conversation)
    kvchat.close()
    assert not block_files()


def test_no_file_of_a_home_holds_a_word_or_a_token_of_what_was_deleted(kvchat: Kvchat) -> None:
    """While two windows have it open: words and token ids stay in indexes, logs and copies for long."""
    chat, paths = kvchat.load(None, None), read_settings().paths
    home = paths.data_dir.parent
    talk(chat, "kept")
    conversation = chat.create("doomed")
    [*chat.send(conversation, " ".join(f"Zeppelinsuppe {number}." for number in range(80)))]
    ids = conversation.turns[0].token_ids or ()
    doomed = (b"Zeppelinsuppe", b"zeppelinsuppe", u32le(ids[64:80]))
    paths.sessions_db.with_name("sessions.db.backup").write_bytes(paths.sessions_db.read_bytes())
    chat.close(conversation)
    kvchat.engine.drain_saves()
    files = [file for file in home.rglob("*") if file.is_file() or file.is_symlink()]
    assert {"sessions.db-wal", "index.db-wal"} <= {file.name for file in files_with(home, *doomed)}
    with closing(open_store(read_settings())) as other, closing(CacheAdmin(paths.cache_dir)):
        other.remove_sessions([conversation.session.id])
        assert not files_with(home, *doomed)
        assert not other.still_readable()
        assert files_with(home, b"kept")
    assert len(files) > 5


def test_what_was_read_ahead_and_never_sent_is_not_saved(kvchat: Kvchat) -> None:
    """No turn names it, so no deletion could ever take it."""
    chat = kvchat.load(None, None)
    for conversation in (None, chat.create("one")):
        ahead = chat.variants.read_ahead(conversation, "", LONG)
        ahead.run()
        ahead.stop()
    kvchat.engine.drain_saves()
    assert not block_files()
    kvchat.close()
    assert not block_files()
