"""kvchat itself."""

import time
from pathlib import Path
from typing import Any

import torch

from kvchat.engine import Engine, EngineConfig, Request, SamplingParams
from kvchat.engine.api.events import TokenEmitted
from kvchat.engine.api.ids import SequenceId


class KvchatEngine:
    """Prompts stay on live sequences; decoding runs on forks of them."""

    def __init__(self, model: str, settings: dict[str, Any]) -> None:
        config = EngineConfig(
            device="cpu",
            weights=settings["weights"],
            dtype=settings.get("dtype", "auto"),
            threads=settings["threads"],
            cache_dir=Path(settings["cache_dir"]),
            max_context=settings["max_context"],
            device_bytes=settings["kv_bytes"],
            disk_bytes=settings.get("disk_bytes"),
            disk_daily_bytes=1,  # nothing is saved while others are measured
            idle_demote_s=None,
            speculate="off",  # every engine does the same work for a token
        )
        self._engine = Engine.load(model, config)
        self._sequences: dict[int, SequenceId] = {}
        self._prompts: dict[int, list[int]] = {}
        self._namespaces: dict[int, str] = {}

    def prefill(self, token_ids: list[int]) -> float:
        if old := self._sequences.pop(len(token_ids), None):
            self._engine.release(old)
        # A namespace of its own: nothing that was computed before may serve it.
        namespace = f"{len(token_ids)} {time.monotonic_ns()}"
        start_s = time.perf_counter()
        handle = self._engine.submit(
            Request(token_ids=tuple(token_ids), sampling=SamplingParams(max_tokens=1), namespace=namespace)
        )
        list(handle)
        elapsed_s = time.perf_counter() - start_s
        self._sequences[len(token_ids)] = handle.sequence
        self._prompts[len(token_ids)] = token_ids
        self._namespaces[len(token_ids)] = namespace
        return elapsed_s

    def decode(self, length: int, num_tokens: int, batch: int) -> float:
        sampling = SamplingParams(max_tokens=num_tokens + 1, ignore_eos=True)
        sequences = [self._engine.fork(self._sequences[length]) for _ in range(batch)]
        handles = [
            self._engine.submit(
                Request(
                    token_ids=(*self._prompts[length], 5 + number),
                    sampling=sampling,
                    sequence=sequence,
                    namespace=self._namespaces[length],
                )
            )
            for number, sequence in enumerate(sequences)
        ]
        num_first = 0
        while num_first < batch:  # the first token of each belongs to the prompt
            num_first += sum(isinstance(event, TokenEmitted) for event in self._engine.step())
        start_s = time.perf_counter()
        while self._engine.has_work:
            self._engine.step()
        elapsed_s = time.perf_counter() - start_s
        for handle in handles:
            self._engine.release(handle.sequence)
        return elapsed_s

    def describe(self) -> dict[str, Any]:
        info = self._engine.info
        return {"engine": "kvchat", "dtype": info.dtype, "torch": torch.__version__}


def open_engine(model: str, settings: dict[str, Any]) -> KvchatEngine:
    return KvchatEngine(model, settings)
