"""CTranslate2: int8 weights and activations, or float32: on a processor it has no 16 bits."""

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import ctranslate2

from benchmarks.cpu.engines.ctranslate2_files import name
from benchmarks.cpu.engines.random_tokens import following

_COMPUTE_TYPES = {"16": "float32", "8": "int8_float32"}


class CTranslate2Engine:
    """A prompt is a "static prompt", whose state the generator keeps and copies for each answer."""

    def __init__(self, model: str, settings: dict[str, Any]) -> None:
        self._compute_type = _COMPUTE_TYPES[settings["bits"]]
        self._generator = ctranslate2.Generator(
            str(_converted(Path(model), settings["bits"], self._compute_type)),
            compute_type=self._compute_type,
            intra_threads=settings["threads"],
        )
        self._num_heads = json.loads((Path(model) / "config.json").read_text())["num_attention_heads"]
        self._held: list[str] = []

    def prefill(self, token_ids: list[int]) -> float:
        """Time the prompt and a step, and take off the step: no call computes a prompt alone."""
        if (needed := self._num_heads * len(token_ids) ** 2 * 4 * 2) > _available_bytes():
            raise NotImplementedError(f"its scores of such a prompt take {needed / 2**30:.0f} GiB")
        self._held = [name(token) for token in token_ids]
        both_s = self._answer(1, is_kept=False)
        self._answer(1)  # which keeps the state
        return both_s - self._answer(1)

    def decode(self, length: int, num_tokens: int, batch: int) -> float:
        if batch != 1:
            raise NotImplementedError(
                "each branch takes a copy of the prompt's state, with a copy for each head"
            )
        if len(self._held) != length:
            raise NotImplementedError("another prompt was computed since")
        return self._answer(num_tokens + 1) - self._answer(1)  # without copying the state

    def _answer(self, num_tokens: int, *, is_kept: bool = True) -> float:
        start_s = time.perf_counter()
        self._generator.generate_batch(
            [[name(following(0))]],
            static_prompt=self._held,
            cache_static_prompt=is_kept,
            include_prompt_in_result=False,
            max_length=num_tokens,
            min_length=num_tokens,
        )
        return time.perf_counter() - start_s

    def describe(self) -> dict[str, Any]:
        return {"engine": "ctranslate2", "version": ctranslate2.__version__, "computes": self._compute_type}


def _available_bytes() -> int:
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))


def _converted(source: Path, bits: str, compute_type: str) -> Path:
    """Return the model in CTranslate2's form, written by another process: this one's memory is measured."""
    target = source.with_name(f"{source.name}-{bits}.ct2")
    if not target.is_dir():
        new = target.with_suffix(".new")
        module = f"{__package__}.ctranslate2_files"
        subprocess.run(
            [sys.executable, "-m", module, source, new, compute_type], check=True, stdout=sys.stderr
        )
        new.rename(target)
    return target


def open_engine(model: str, settings: dict[str, Any]) -> CTranslate2Engine:
    return CTranslate2Engine(model, settings)
