"""The interface on a real store and a scripted engine, as a person's window is on theirs."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path

from kvchat.chat.service import Chat
from kvchat.session.store import SessionStore
from kvchat.session.template.chat_template import ChatTemplate
from kvchat.ui.app import KvchatApp
from tests.scripted_engine import ScriptedEngine
from tests.ui.harness import Window
from tests.ui.scripted_files import ScriptedFiles


@asynccontextmanager
async def window_on(
    home: Path, template: ChatTemplate, initial: str | None = None, *, max_context: int = 100_000
) -> AsyncIterator[Window]:
    """Open a window of its own on a store."""
    end = min(template.end_ids)
    engine = ScriptedEngine(
        lambda prompt: [*template.tokenizer.encode("Very well."), end], max_context=max_context
    )
    with closing(SessionStore(home / "sessions.db")) as store:
        chat = Chat(store=store, template=template, engine=engine, model="tiny")
        app = KvchatApp(chat, engine, ScriptedFiles(), initial, log_path=home / "log")
        async with app.run_test(size=(120, 30)) as pilot:
            yield Window(app, pilot, chat, engine, app)  # type: ignore[arg-type]
