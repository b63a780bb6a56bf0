"""Waiting for the model, and for one's turn in a session, with what is waited for on the status line."""

from collections.abc import Iterator
from contextlib import contextmanager
from time import sleep

from kvchat.chat.engine_client import EngineClient
from kvchat.cli.output.streams import Status
from kvchat.engine.api.engine_phase import EnginePhase
from kvchat.platform.paths import Paths
from kvchat.session.store import SessionStore
from kvchat.session.tree import SessionId
from kvchat.session.turn_lock import is_being_answered, turn_lock

_POLL_S = 0.05


def wait_until_loaded(engine: EngineClient, status: Status) -> None:
    """Return when the engine is loaded.

    Raises:
        KvchatError: why it could not be.
    """
    while (state := engine.status()).phase is EnginePhase.LOADING:
        status.show(f"{state.detail} …")
        sleep(_POLL_S)
    status.clear()
    engine.info()  # raises why it could not be loaded


@contextmanager
def own_turn(store: SessionStore, paths: Paths, session_id: SessionId, status: Status) -> Iterator[None]:
    """Hold a session alone: behind every other `ask`, and behind what a window is answering in it."""

    def show() -> None:
        status.show("another answer is being written in this session …")

    with turn_lock(paths.data_dir / "locks", session_id, show):
        while is_being_answered(store, session_id):
            show()
            sleep(_POLL_S)
        status.clear()
        yield
