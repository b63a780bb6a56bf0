"""The one place where sessions, engine and chat are put together."""

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, cast

from kvchat.app.config import Settings
from kvchat.app.engine_swap import EngineSwap
from kvchat.app.lazy import LazyChat
from kvchat.app.model_location import located
from kvchat.app.open_store import open_store
from kvchat.app.retention.session_removal import SessionService
from kvchat.chat.engine_client import EngineClient
from kvchat.engine.api.config import EngineConfig
from kvchat.engine.models.locate import ModelLocation, lasting_name
from kvchat.engine.worker import Worker
from kvchat.errors import KvchatError, ModelNotFound
from kvchat.session.kv.provenance import origin_of
from kvchat.session.tree import Session
from kvchat.text.fit_text import one_line

if TYPE_CHECKING:
    from kvchat.app.ipc.server import EngineServer
    from kvchat.chat.service import Chat
    from kvchat.session.template.chat_template import ChatTemplate

log = logging.getLogger(__name__)

EngineFactory = Callable[[str, Path, EngineConfig], EngineClient]
"""Makes an engine that loads the model of this name from this directory, and returns while it loads."""


def start_worker(model: str, model_dir: Path, config: EngineConfig) -> EngineClient:
    """Start the engine in a thread of its own, which alone loads torch."""
    worker = Worker(model, model_dir, config)
    worker.start()
    return worker


def borrowed_or_started(runtime_dir: Path) -> EngineFactory:
    """Return what borrows the engine that another process lends, and starts one where there is none."""

    from kvchat.app.ipc.client import borrow
    from kvchat.app.ipc.socket_path import identity_of, socket_path

    def factory(model: str, model_dir: Path, config: EngineConfig) -> EngineClient:
        identity = identity_of(model_dir, config)
        borrowed = borrow(socket_path(runtime_dir, identity), identity)
        return borrowed or start_worker(model, model_dir, config)

    return factory


class Kvchat:
    """An open store, and the engine and chat above it once a model is chosen."""

    def __init__(self, settings: Settings, store: SessionService, engine_factory: EngineFactory) -> None:
        self.store = store
        self._settings = settings
        self._engine_factory = engine_factory
        self._engine: EngineClient | None = None
        self._template: ChatTemplate | None = None
        self._model_dir: Path | None = None
        self._lazy: LazyChat | None = None
        self._lender: EngineServer | None = None
        self._is_to_be_lent = False

    @property
    def engine(self) -> EngineClient:
        assert self._engine is not None, "load comes first"
        return self._engine

    def load(self, reference: str | None, model: str | None, adapter: Path | None = None) -> "Chat":
        """Begin to load a model, without waiting for it, and return the chat that uses it.

        Args:
            reference: the session to be opened; it goes on with the model it was started with.
            model: the model that was asked for by name, which comes before that; None: none was.
            adapter: what was given for one (it may be `none`); None: nothing was, and the session goes on
                with its own.

        Raises:
            SessionError: `reference` names no session.
            ModelError: there is no such model or adapter, or its tokenizer cannot be read.
        """
        if self._settings.remote.url is not None:
            return self._load_remote(self._settings.remote.url, reference, model)
        location = self._choose(reference, model, adapter)
        template = _template_of(location)
        self._make_engine(location)
        return self._make_chat(location, template)

    def load_lazily(self, reference: str | None, model: str | None, adapter: Path | None = None) -> "Chat":
        """Do as `load`, but read the tokenizer, and import what a chat needs, when it is first used.

        Raises:
            SessionError, ModelError: see `load`; that a tokenizer cannot be read is raised when it is.
        """
        if self._settings.remote.url is not None:
            return self._load_remote(self._settings.remote.url, reference, model)
        location = self._choose(reference, model, adapter)
        self._make_engine(location)
        self._lazy = LazyChat(self.store, lambda: self._make_chat(location, _template_of(location)))
        return cast("Chat", self._lazy)

    def finish_load(self) -> None:
        """Make the chat of `load_lazily`, unless it was used already.

        Raises:
            ModelError: its tokenizer cannot be read.
        """
        if self._lazy is not None:
            self._lazy.made()

    def _choose(self, reference: str | None, model: str | None, adapter: Path | None) -> ModelLocation:
        """Return where the model is, and take over what the session that is opened has of its own."""
        session = None if reference is None else self.store.find(reference)
        if session is not None and model in (None, session.model):
            model = session.model
            if adapter is None and self._settings.engine.adapter is None and session.adapter:
                self._use_adapter_of(session)
        if session is not None:
            self._use_format_of(session)
        return located(self._settings, model or self._settings.model)

    def _make_engine(self, location: ModelLocation) -> None:
        self._model_dir = location.path
        engine = replace(self._settings.engine, is_gone=self.store.is_gone)
        self._engine = self._engine_factory(lasting_name(location), location.path, engine)
        self.store.drain = self._engine.drain_saves

    def _make_chat(self, location: ModelLocation, template: "ChatTemplate") -> "Chat":
        from kvchat.chat.service import Chat

        self._template = template
        return Chat(
            store=self.store,
            template=template,
            engine=self.engine,
            model=lasting_name(location),
            sampling=self._settings.sampling,
            adapter=str(used.absolute()) if (used := self._settings.engine.adapter) else "",
        )

    def _load_remote(self, url: str, reference: str | None, model: str | None) -> "Chat":
        """Return the chat of a server; the first of its models unless one is named."""
        from kvchat.platform.api_key import read_key
        from kvchat.remote.chat_service import RemoteChat
        from kvchat.remote.endpoint import RemoteServer

        if reference is not None:
            self.store.find(reference)
        key_file = self._settings.remote.key_file
        endpoint = RemoteServer(url, None if key_file is None else read_key(key_file))
        if model is None:
            models = endpoint.models()
            if not models:
                raise ModelNotFound(f"{endpoint.url} has no model; load one there, or name one with -m")
            model = models[0]
        chat = RemoteChat(store=self.store, endpoint=endpoint, model=model, sampling=self._settings.sampling)
        self._engine = chat.engine
        return chat

    def _use_format_of(self, session: Session) -> None:
        """Go on in the format that a session was converted to, unless another one is set."""
        origin = origin_of(session.namespace)
        if origin is not None and self._settings.engine.cache_format == origin.source:
            self.use_engine({"cache_format": origin.cache_format})

    def use_engine(self, changes: Mapping[str, object]) -> None:
        """Go on with another engine, which differs in these values, and name what is lent by it."""
        engine = replace(self._settings.engine, **changes)  # type: ignore[arg-type]
        self._settings = replace(self._settings, engine=engine)

    def _use_adapter_of(self, session: Session) -> None:
        path = Path(session.adapter)
        if not path.is_dir():
            raise ModelNotFound(
                f"“{one_line(session.title)}” was computed with the adapter {path}, which is gone. Give its"
                " place with --adapter DIR, or go on without it, which computes its KV again: --adapter none"
            )
        self.use_engine({"adapter": path})

    def lend(self) -> "EngineServer | None":
        """Lend the engine to other processes of this user until this is closed.

        Returns:
            None where another process lends such an engine already.

        Raises:
            StorageError: there is no private place for a socket.
        """
        from kvchat.app.ipc.server import EngineServer
        from kvchat.app.ipc.socket_path import identity_of, socket_path

        assert self._template is not None, "load comes first"
        assert self._model_dir is not None
        identity = identity_of(self._model_dir, self._settings.engine)
        path = socket_path(self._settings.paths.runtime_dir, identity)
        self._is_to_be_lent = True
        # A worker itself: a borrower that ends late must not release a branch of the worker after it.
        engine = self.engine.worker if isinstance(self.engine, EngineSwap) else self.engine
        lender = EngineServer(engine, self._template, path, identity)
        self._lender = lender if lender.start() else None
        return self._lender

    def stop_lending(self) -> None:
        """Lend the engine no more, because it ends or begins anew."""
        lender, self._lender = self._lender, None
        if lender is not None:
            lender.close()

    def lend_again(self, model_dir: Path | None = None, template: "ChatTemplate | None" = None) -> None:
        """Lend the engine that has begun anew, perhaps with another model, if it was to be lent before."""
        if model_dir is not None:
            self._model_dir, self._template = model_dir, template
            self.use_engine({"adapter": None})  # made for the model that went
        if self._is_to_be_lent:
            self.lend_if_possible()

    def lend_if_possible(self) -> None:
        """Lend the engine to `kvchat ask`; what runs without a socket runs as well."""
        try:
            self.lend()
        except (KvchatError, OSError) as error:
            log.warning("the engine is not lent: %s", error)

    def close(self) -> None:
        """Save what the engine has not saved yet, and free its memory."""
        self.stop_lending()
        if self._engine is not None:
            self._engine.close()


def _template_of(location: ModelLocation) -> "ChatTemplate":
    from kvchat.session.template.chat_template import ChatTemplate

    return ChatTemplate.from_dir(location.path)


@contextmanager
def opened(settings: Settings, engine_factory: EngineFactory, *, temp: bool = False) -> Iterator[Kvchat]:
    """Open the store, and close whatever was opened behind it at the end.

    Args:
        temp: keep neither text nor KV: the store is in memory alone, since a process that is killed cannot
            tidy up, and there is no disk tier.
    """
    with ExitStack() as stack:
        if temp:
            directory = stack.enter_context(TemporaryDirectory(prefix="kvchat-"))
            settings = replace(
                settings,
                paths=replace(settings.paths, data_dir=Path(directory), cache_dir=Path(directory)),
                engine=replace(settings.engine, cache_dir=None, encryptor=None),
            )
        # A directory that is never made: there are no blocks to be listed, kept or removed.
        opened_store = (
            SessionService(None, settings.paths.cache_dir / "none") if temp else open_store(settings)
        )
        store = stack.enter_context(closing(opened_store))
        yield stack.enter_context(closing(Kvchat(settings, store, engine_factory)))
