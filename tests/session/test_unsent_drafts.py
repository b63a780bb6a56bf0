"""What was not sent is kept for its conversation, privately, and is given back once."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from kvchat.errors import StorageError
from kvchat.platform.encryptor import Encryptor
from kvchat.session.store import SessionStore
from kvchat.session.unsent_drafts import DraftStore

pytestmark = pytest.mark.pure

ENCRYPTORS = [None, Encryptor(bytes(32))]


def taken(drafts: DraftStore, session_id: str | None) -> str:
    """Return what is stored for a session, which is removed."""
    with drafts.lent(session_id) as draft:
        if draft.complaint:
            raise StorageError(draft.complaint)
        return draft.text


@pytest.mark.parametrize("encryptor", ENCRYPTORS)
def test_it_is_kept_in_order_for_its_session_and_given_back_once(
    tmp_path: Path, encryptor: Encryptor | None
) -> None:
    drafts = DraftStore(tmp_path / "unsent", encryptor)
    drafts.keep("s1", "one \ud800")
    drafts.keep("s1", "two")
    drafts.keep(None, "a beginning")
    assert {file.stat().st_mode & 0o777 for file in (tmp_path / "unsent").iterdir()} == {0o600}
    again = DraftStore(tmp_path / "unsent", encryptor)
    assert taken(again, "s2") == ""
    assert taken(again, "s1") == "one \ud800\ntwo"
    assert taken(again, "s1") == ""
    assert taken(again, None) == "a beginning"
    assert list((tmp_path / "unsent").iterdir()) == []


def test_it_is_encrypted_and_unencrypted_with_the_conversations(tmp_path: Path) -> None:
    plain, encrypted = DraftStore(tmp_path, None), DraftStore(tmp_path, Encryptor(bytes(32)))
    plain.keep("s1", "a secret")
    plain.copy_to(Encryptor(bytes(32)))
    plain.copy_to(Encryptor(bytes(32)))
    plain.forget("s1")
    assert b"secret" not in b"".join(file.read_bytes() for file in tmp_path.iterdir())
    assert taken(encrypted, "s1") == "a secret"


def test_a_damaged_one_is_named_and_another_key_opens_nothing(tmp_path: Path) -> None:
    DraftStore(tmp_path, Encryptor(bytes(32))).keep("s1", "a secret")
    with pytest.raises(StorageError, match="is damaged; remove the file"):
        taken(DraftStore(tmp_path, Encryptor(bytes([1] * 32))), "s1")


def test_it_goes_with_its_session_and_is_not_written_where_nothing_is(tmp_path: Path) -> None:
    store = SessionStore(tmp_path / "sessions.db")
    session = store.create_session(title="demo")
    store.unsent.keep(session.id, "half a thought")
    store.delete_session(session.id)
    assert taken(store.unsent, session.id) == ""
    store.close()
    forgetful = DraftStore(None, None)
    forgetful.keep(None, "half a thought")
    assert taken(forgetful, None) == ""


def test_a_damaged_one_is_set_aside_and_costs_neither_the_others_nor_the_next(tmp_path: Path) -> None:
    drafts = DraftStore(tmp_path, None)
    for text in ("first", "torn", "third"):
        drafts.keep(None, text)
    torn = sorted(tmp_path.iterdir())[1]
    torn.write_bytes(torn.read_bytes()[:4])
    (tmp_path / "new.json").write_bytes(b"")
    drafts.keep(None, "next")
    drafts.copy_to(Encryptor(bytes(32)))
    with DraftStore(tmp_path, Encryptor(bytes(32))).lent(None) as kept:
        assert kept.text == "first\nthird\nnext"
    with drafts.lent(None) as kept:
        assert kept.text == "first\nthird\nnext"
        assert str(tmp_path / f"damaged-{torn.name}") in kept.complaint
    with drafts.lent(None) as kept:
        assert (kept.text, kept.complaint) == ("", "")
    drafts.forget(None)
    assert not list(tmp_path.glob("*.json"))


def test_windows_that_close_together_lose_nothing(tmp_path: Path) -> None:
    stores = [DraftStore(tmp_path, None) for _ in range(8)]
    with ThreadPoolExecutor(8) as windows:
        for number in range(5):
            list(windows.map(lambda drafts, n=number: drafts.keep(None, f"text {n}"), stores))
    texts = taken(stores[0], None).splitlines()
    assert texts == sorted(texts)
    assert len(texts) == 40


@pytest.mark.parametrize("encryptor", ENCRYPTORS)
def test_it_is_lent_to_one_window_and_kept_until_that_one_has_it(
    tmp_path: Path, encryptor: Encryptor | None
) -> None:
    one, other = DraftStore(tmp_path, encryptor), DraftStore(tmp_path, encryptor)
    one.keep("s1", "half a thought")
    with suppress(KeyboardInterrupt), one.lent("s1") as kept:
        assert kept.text == "half a thought"
        assert taken(other, "s1") == ""
        raise KeyboardInterrupt
    assert other.holds("s1")
    with other.lent("s1") as kept:
        assert kept.text == "half a thought"
    assert not one.holds("s1")


def test_what_is_for_another_branch_stays_and_what_is_for_a_branch_that_is_gone_goes_to_any(
    tmp_path: Path,
) -> None:
    drafts = DraftStore(tmp_path, None)
    drafts.keep("s1", "on boats", "boats")
    drafts.keep("s1", "on trains", "trains")
    with drafts.lent("s1", {"boats"}) as lent:
        assert lent.text == "on trains"
    with drafts.lent("s1", {"main"}) as lent:
        assert lent.text == "on boats"
    assert taken(drafts, "s1") == ""


def test_texts_of_before_there_were_branches_are_given_back(tmp_path: Path) -> None:
    (tmp_path / "s1.json").write_text('["one", "two"]')
    assert taken(DraftStore(tmp_path, None), "s1") == "one\ntwo"
