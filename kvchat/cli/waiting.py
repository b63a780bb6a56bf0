"""Waiting for the model, with what it does on the status line."""

from time import sleep

from kvchat.chat import EngineClient, EnginePhase
from kvchat.cli.streams import Status

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
