"""Polling of a server's cache metrics, beside the conversation and never in its way."""

from threading import Event, Thread
from time import monotonic

from kvchat.engine.api.server_cache import ServerCache
from kvchat.errors import KvchatError
from kvchat.remote.endpoint import RemoteServer
from kvchat.remote.metrics import served_cache

_PAUSE_S = 2.0
_MOST_PAUSE_S = 60.0
_SHARE = 4.0
"""A server is left alone this many times as long as it took to answer."""


class MetricsPoller:
    """A thread that asks; whoever looks takes what came last.

    Attributes:
        latest: None before the first answer, and while there is none that says anything.
        model: whose figures count, where a server tells them by model.
    """

    def __init__(self, endpoint: RemoteServer, model: str, pause_s: float = _PAUSE_S) -> None:
        self.latest: ServerCache | None = None
        self.model = model
        self._endpoint = endpoint
        self._pause_s = pause_s
        self._ended = Event()
        # A daemon: a server that never answers must not keep the process alive.
        self._thread = Thread(target=self._run, name="kvchat-metrics", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Ask no more; does not wait for an answer that is on its way."""
        self._ended.set()

    def _run(self) -> None:
        pause_s = self._pause_s
        while not self._ended.is_set():
            start_s = monotonic()
            try:
                self.latest = served_cache(self._endpoint.metrics(), self.model)
            except KvchatError:
                self.latest = None
            took_s = monotonic() - start_s
            # Most servers that say nothing of their cache never will.
            pause_s = self._pause_s if self.latest is not None else min(_MOST_PAUSE_S, pause_s * 2)
            self._ended.wait(max(pause_s, took_s * _SHARE))
