"""An engine that can begin anew, with the same model or another, while chat and interface keep hold of it."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from kvchat.chat.engine_client import EngineClient
from kvchat.engine.api.config import EngineConfig
from kvchat.engine.worker import Worker


class EngineSwap:
    """Makes a worker that begins to load when `start` is called, once the window is drawn; and stands for it.

    What `EngineClient` has is the worker's. Live sequences end with the worker that has them: whoever holds
    any lets go of them before a swap.
    """

    def __init__(self) -> None:
        self._made: tuple[str, Path, EngineConfig] | None = None
        self._worker: Worker | None = None

    def __call__(self, model: str, model_dir: Path, config: EngineConfig) -> EngineClient:
        self._made = model, model_dir, config
        self._worker = Worker(model, model_dir, config, steps_aside=True)
        return cast("EngineClient", self)

    @property
    def model(self) -> str:
        """The name of the model that is loaded, or is being loaded."""
        assert self._made is not None, "it is made before it is used"
        return self._made[0]

    @property
    def config(self) -> EngineConfig | None:
        """What the engine is built from; None where none was made, since a server answers."""
        return None if self._made is None else self._made[2]

    def swap(
        self,
        model: str | None = None,
        model_dir: Path | None = None,
        *,
        changes: Mapping[str, object] | None = None,
    ) -> None:
        """Close the worker, which saves what it has not saved yet, and begin to load again.

        Args:
            changes: other values of what the engine is built from, by their names.
        """
        assert self._made is not None, "it is made before it is swapped"
        self.worker.close()
        name, place, config = self._made
        config = replace(config, **(changes or {}))  # type: ignore[arg-type]
        if model is not None:
            config = replace(config, adapter=None)  # made for the model that goes
        self(model or name, model_dir or place, config)
        self.worker.start()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.worker, name)

    @property
    def worker(self) -> Worker:
        """The worker of now; another one after a swap."""
        assert self._worker is not None, "it is made before it is used"
        return self._worker
