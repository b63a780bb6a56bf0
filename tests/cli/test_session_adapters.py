"""A session knows the LoRA that it was computed with, and goes on with it unless another is named."""

import re
import shlex
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from kvchat.app.composition import opened
from kvchat.app.config import Settings, read_settings
from kvchat.chat.engine_client import EngineClient
from kvchat.chat.service import Chat
from kvchat.engine.api.config import EngineConfig
from kvchat.engine.models.locate import locate_model
from kvchat.errors import ModelNotFound
from kvchat.platform.encryptor import Encryptor
from kvchat.session.database import schema
from kvchat.session.store import SessionStore
from kvchat.session.template.chat_template import ChatTemplate
from tests.scripted_engine import ScriptedEngine

pytestmark = pytest.mark.pure


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return read_settings(environ={"KVCHAT_HOME": str(tmp_path / "home")}, cwd=tmp_path)


@pytest.fixture
def adapter(tmp_path: Path) -> Path:
    path = tmp_path / "my lora"
    path.mkdir()
    return path


@pytest.fixture
def session_id(settings: Settings, adapter: Path) -> Iterator[str]:
    """A session that was computed with the adapter."""
    template = ChatTemplate.from_dir(locate_model("starter", cache_dir=settings.paths.cache_dir).path)
    engine = ScriptedEngine(lambda prompt: template.tokenizer.encode("Yes."))
    engine.adapter = str(adapter)
    with opened(settings, lambda *_: engine) as kvchat:
        chat = kvchat.load(None, "starter")
        conversation = chat.create(title="Trip")
        assert conversation.session.adapter == ""
        list(chat.send(conversation, "By boat?"))
        assert conversation.session.adapter == str(adapter)
        assert kvchat.store.session(conversation.session.id).adapter == str(adapter)
        yield conversation.session.id


def loaded_with(settings: Settings, session_id: str, model: str | None, named: Path | None) -> Path | None:
    """Return the adapter that an engine is asked to load for a session."""
    asked: list[EngineConfig] = []

    def factory(name: str, model_dir: Path, config: EngineConfig) -> EngineClient:
        asked.append(config)
        return ScriptedEngine(lambda prompt: [])

    with opened(settings, factory) as kvchat:
        kvchat.load(session_id, model, named)
    return asked[0].adapter


def test_a_session_goes_on_with_its_adapter(settings: Settings, session_id: str, adapter: Path) -> None:
    assert loaded_with(settings, session_id, None, None) == adapter


def test_none_or_another_model_leaves_it_out(settings: Settings, session_id: str, tmp_path: Path) -> None:
    assert loaded_with(settings, session_id, None, Path("none")) is None
    starter = locate_model("starter", cache_dir=settings.paths.cache_dir).path
    assert loaded_with(settings, session_id, str(starter), None) is None


def test_an_adapter_that_is_gone_is_named_with_what_to_do(
    settings: Settings, session_id: str, adapter: Path
) -> None:
    adapter.rmdir()
    with pytest.raises(ModelNotFound, match=re.escape(str(adapter))) as told:
        loaded_with(settings, session_id, None, None)
    assert "“Trip” was computed with the adapter" in str(told.value)
    assert "--adapter DIR" in str(told.value)
    assert "--adapter none" in str(told.value)


def test_opened_without_it_what_differs_is_told_and_how_to_open_it(
    settings: Settings, session_id: str, adapter: Path
) -> None:
    with opened(settings, lambda *_: ScriptedEngine(lambda prompt: [])) as kvchat:
        chat: Chat = kvchat.load(session_id, None, Path("none"))
        (notice,) = chat.notices(chat.open(session_id))
        assert f"computed with the adapter {adapter}, and here is no adapter" in notice
        (command,) = re.findall(r"To go on as before: (.+)", notice)
        assert shlex.split(command) == ["kvchat", session_id, "--adapter", str(adapter)]
    with opened(settings, lambda *_: ScriptedEngine(lambda prompt: [])) as kvchat:
        chat = kvchat.load(session_id, None)
        assert chat.notices(chat.open(session_id)) == ()


@pytest.mark.parametrize("encryptor", [None, Encryptor(bytes(32))], ids=["in the clear", "encrypted"])
def test_sessions_of_the_version_before_have_no_adapter_and_take_one(
    tmp_path: Path, encryptor: Encryptor | None
) -> None:
    path = tmp_path / "sessions.db"
    with closing(SessionStore(path, encryptor)) as store:
        session = store.create_session(title="old")
        with store._database.write() as connection:
            connection.execute("UPDATE sessions SET digests = substr(digests, 1, 80)")
    _take_back_a_version(path, is_encrypted=encryptor is not None)
    for _ in range(2):
        with closing(SessionStore(path, encryptor)) as store:
            assert store.session(session.id).adapter == ""
            store.rename(session.id, "still old")
    with closing(SessionStore(path, encryptor)) as store:
        store.note_adapter(session.id, "/loras/one")
    with closing(SessionStore(path, encryptor)) as store:
        assert store.session(session.id).adapter == "/loras/one"
        assert store.session(session.id).title == "still old"
    assert (b"/loras/one" in path.read_bytes()) is (encryptor is None)
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (len(schema.MIGRATIONS),)


def _take_back_a_version(path: Path, *, is_encrypted: bool) -> None:
    """Bring a database to what the version before this one has written."""
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"ALTER TABLE {'sealed_' if is_encrypted else ''}sessions DROP COLUMN adapter")
        connection.execute("PRAGMA user_version = 4")
        connection.commit()
