"""Interface services while a server computes."""

from collections.abc import Sequence

from kvchat.app.interface_host import InterfaceHost
from kvchat.app.interface_types import Gauged, ModelEntry
from kvchat.engine.models.locate import Progress
from kvchat.errors import ModelNotFound, UsageError
from kvchat.remote.chat_service import RemoteChat


class RemoteHost(InterfaceHost):
    """Knows the server's models in place of those that are here."""

    @property
    def _remote(self) -> RemoteChat:
        assert isinstance(self._chat, RemoteChat), "made for a server"
        return self._chat

    def begin(self) -> None:
        """Begin to ask the server what its cache holds."""
        self._remote.engine.watch_cache()

    def models(self) -> Sequence[ModelEntry]:
        chat = self._remote
        return [
            ModelEntry(name=name, summary=f"at {chat.endpoint.name}", is_current=name == chat.model)
            for name in chat.endpoint.models()
        ]

    def fetch(self, model: str, progress: Progress) -> None:
        """Do nothing: the model is on the server."""

    def check_model(self, model: str) -> None:
        if model not in self._remote.endpoint.models():
            raise ModelNotFound(f"{self._remote.endpoint.name} has no model {model!r}; /model lists its own")

    def gauge(self, session_id: str, branch: str, cache_format: str) -> Gauged:
        raise UsageError("the cache is the server's; measure with a model that runs here")

    def format_cost(self, session_id: str, cache_format: str) -> str:
        raise UsageError("the cache is the server's; choose a format with a model that runs here")

    def reload(self, model: str | None = None) -> None:
        """Go on with another model of the server.

        Raises:
            UsageError: none was named: there is nothing to load here.
        """
        if model is None:
            raise UsageError("the model runs on the server; there is nothing to load again here")
        self._remote.use_model(model)
