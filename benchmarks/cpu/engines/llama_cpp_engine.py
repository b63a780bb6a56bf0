"""llama.cpp through llama-cpp-python."""

import time
from typing import Any

import llama_cpp
import numpy as np

from benchmarks.cpu.engines.random_tokens import following


class LlamaCppEngine:
    """One context; a state is gone back to by cutting the context."""

    def __init__(self, model: str, settings: dict[str, Any]) -> None:
        self._llama = llama_cpp.Llama(
            model,
            n_ctx=settings["max_context"],
            n_batch=512,
            n_threads=settings["threads"],
            n_threads_batch=settings["threads"],
            flash_attn=True,
            verbose=False,
        )
        self._held: list[int] = []

    def prefill(self, token_ids: list[int]) -> float:
        self._llama.reset()
        start_s = time.perf_counter()
        self._llama.eval(token_ids)
        elapsed_s = time.perf_counter() - start_s
        self._held = token_ids
        return elapsed_s

    def decode(self, length: int, num_tokens: int, batch: int) -> float:
        if batch != 1:
            raise NotImplementedError("one sequence at a time")
        if len(self._held) != length:
            raise NotImplementedError("another prompt was computed since")
        self._llama.n_tokens = length
        token = following(0)
        start_s = time.perf_counter()
        for _ in range(num_tokens):
            self._llama.eval([token])
            logits = llama_cpp.llama_get_logits(self._llama.ctx)
            token = int(np.ctypeslib.as_array(logits, shape=(self._llama.n_vocab(),)).argmax())
        elapsed_s = time.perf_counter() - start_s
        self._llama.n_tokens = length
        return elapsed_s

    def describe(self) -> dict[str, Any]:
        return {"engine": "llama.cpp", "version": llama_cpp.__version__}


def open_engine(model: str, settings: dict[str, Any]) -> LlamaCppEngine:
    return LlamaCppEngine(model, settings)
