"""An engine that can begin anew, with the same model or another, while chat and interface keep hold of it."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from kvchat.chat.engine_client import RequestHandle
from kvchat.engine.api.config import EngineConfig, EngineInfo
from kvchat.engine.api.ids import SequenceId
from kvchat.engine.api.inspection import InspectedBlock, InspectionRequest
from kvchat.engine.api.request import Request
from kvchat.engine.api.snapshot import CacheSnapshot
from kvchat.engine.api.status import EngineStatus
from kvchat.engine.worker import Worker


class EngineSwap:
    """Makes a worker that begins to load when `start` is called, once the window is drawn; and is its proxy.

    Implements `EngineClient`. Live sequences end with the worker that has them: whoever holds any lets go of
    them before a swap.
    """

    def __init__(self) -> None:
        self._made: tuple[str, Path, EngineConfig] | None = None
        self._worker: Worker | None = None

    def __call__(self, model: str, model_dir: Path, config: EngineConfig) -> "EngineSwap":
        self._made = model, model_dir, config
        self._worker = Worker(model, model_dir, config, steps_aside=True)
        return self

    @property
    def model(self) -> str:
        """The name of the model that is loaded, or is being loaded."""
        assert self._made is not None, "it is made before it is used"
        return self._made[0]

    @property
    def config(self) -> EngineConfig | None:
        """What the engine is built from; None where none was made, since a server answers."""
        return None if self._made is None else self._made[2]

    def start(self) -> None:
        self.worker.start()

    def swap(
        self,
        model: str | None = None,
        model_dir: Path | None = None,
        *,
        cache_format: str | None = None,
        changes: Mapping[str, object] | None = None,
    ) -> None:
        """Close the worker, which saves what it has not saved yet, and begin to load again.

        Args:
            cache_format: another one to keep KV in.
            changes: other values of what the engine is built from, by their names.
        """
        assert self._made is not None, "it is made before it is swapped"
        self.worker.close()
        name, place, config = self._made
        config = replace(config, **(changes or {}))  # type: ignore[arg-type]
        if cache_format is not None:
            config = replace(config, cache_format=cache_format)
        if model is not None:
            config = replace(config, adapter=None)  # made for the model that goes
        self(model or name, model_dir or place, config)
        self.start()

    def status(self) -> EngineStatus:
        return self.worker.status()

    def info(self) -> EngineInfo:
        return self.worker.info()

    def submit(self, request: Request) -> RequestHandle:
        return self.worker.submit(request)

    def prioritise_sequence(self, sequence: SequenceId, priority: int) -> None:
        self.worker.prioritise_sequence(sequence, priority)

    def fork(self, sequence: SequenceId) -> SequenceId:
        return self.worker.fork(sequence)

    def release(self, sequence: SequenceId) -> None:
        self.worker.release(sequence)

    def drain_saves(self) -> None:
        self.worker.drain_saves()

    def reusable_len(self, token_ids: Sequence[int], namespace: str = "") -> int:
        return self.worker.reusable_len(token_ids, namespace)

    def prefetch(self, token_ids: Sequence[int], *, beside: Sequence[int] = (), namespace: str = "") -> None:
        self.worker.prefetch(token_ids, beside=beside, namespace=namespace)

    def inspect(self, request: InspectionRequest) -> tuple[InspectedBlock, ...]:
        return self.worker.inspect(request)

    def snapshot(self) -> CacheSnapshot | None:
        return self.worker.snapshot()

    def close(self) -> None:
        self.worker.close()

    @property
    def worker(self) -> Worker:
        """The worker of now; another one after a swap."""
        assert self._worker is not None, "it is made before it is used"
        return self._worker
