"""Stand-in for the engine when a server computes: always ready, and reports as much as the server does."""

from collections.abc import Sequence
from threading import Event, Thread
from time import monotonic
from typing import NoReturn

from kvchat.engine.api.cache_events import CacheEvent
from kvchat.engine.api.config import EngineInfo
from kvchat.engine.api.engine_phase import EnginePhase, EngineStatus
from kvchat.engine.api.ids import SequenceId
from kvchat.engine.api.inspection import InspectedBlock, InspectionRequest
from kvchat.engine.api.request import Request
from kvchat.engine.api.server_cache import ServerCache
from kvchat.errors import KvchatError, UsageError
from kvchat.remote.endpoint import RemoteServer
from kvchat.remote.metrics import served_cache

_PAUSE_S = 2.0
_MOST_PAUSE_S = 60.0
_SHARE = 4.0
"""A server is left alone this many times as long as it took to answer."""


class NullEngine:
    """Implements `EngineClient`.

    Attributes:
        detail: which model answers, and where.
    """

    def __init__(self, endpoint: RemoteServer, model: str, pause_s: float = _PAUSE_S) -> None:
        self._endpoint = endpoint
        self._pause_s = pause_s
        self._ended = Event()
        self._served: ServerCache | None = None
        self.use_model(model)

    def use_model(self, model: str) -> None:
        """Speak of another of the server's models from now on."""
        self._model = model
        self.detail = f"{model} at {self._endpoint.name}"

    def watch_cache(self) -> None:
        """Begin to ask the server what its cache holds, until this is closed; `status` tells what came last,
        of the model where the server tells it by model.
        """
        # A daemon: a server that never answers must not keep the process alive.
        Thread(target=self._poll, name="kvchat-metrics", daemon=True).start()

    def status(self) -> EngineStatus:
        return EngineStatus(phase=EnginePhase.READY, detail=self.detail, served=self._served)

    def info(self) -> EngineInfo:
        return EngineInfo(
            model=self.detail,
            model_dir="",
            fingerprint="",
            dtype="",
            device="",
            block_size=0,
            max_context=0,
            vocab_size=0,
            eos_token_ids=(),
            num_layers=0,
            disk_enabled=False,
            is_exact=False,
        )

    def submit(self, request: Request) -> NoReturn:
        raise UsageError("a server takes text, no tokens")

    def prioritise_sequence(self, sequence: SequenceId, priority: int) -> None:
        pass

    def fork(self, sequence: SequenceId) -> NoReturn:
        raise UsageError("a server has no branches")

    def release(self, sequence: SequenceId) -> None:
        pass

    def drain_saves(self) -> None:
        pass

    def reusable_len(self, token_ids: Sequence[int], namespace: str = "") -> int:
        return 0

    def prefetch(self, token_ids: Sequence[int], *, beside: Sequence[int] = (), namespace: str = "") -> None:
        pass

    def cache_events(self, since: int = 0) -> tuple[CacheEvent, ...]:
        return ()

    def inspect(self, request: InspectionRequest) -> tuple[InspectedBlock, ...]:
        return ()

    def snapshot(self) -> None:
        return None

    def close(self) -> None:
        """Ask no more; does not wait for an answer that is on its way."""
        self._ended.set()

    def _poll(self) -> None:
        """Ask again and again, beside the conversation and never in its way."""
        pause_s = self._pause_s
        while not self._ended.is_set():
            start_s = monotonic()
            try:
                self._served = served_cache(self._endpoint.metrics(), self._model)
            except KvchatError:
                self._served = None
            took_s = monotonic() - start_s
            # Most servers that say nothing of their cache never will.
            pause_s = self._pause_s if self._served is not None else min(_MOST_PAUSE_S, pause_s * 2)
            self._ended.wait(max(pause_s, took_s * _SHARE))
