"""Compiles what is measured in processes beside each other, before anything is.

About a hundred kernels take seconds each. Triton keeps on disk what it makes of them, and the process that
measures finds it there; what fails here fails there too, and is told there.
"""

import logging
import random
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from os import cpu_count
from pathlib import Path
from time import perf_counter

import torch

from benchmarks.gpu import checks, operations
from benchmarks.gpu.parts import Run
from benchmarks.gpu.stage import Stage

ROOT = Path(__file__).parent.parent.parent
MOST_PROCESSES = 12
MOST_S = 120.0
"""What is not compiled by then is compiled when it is measured."""
PARTS = (
    operations.store,
    operations.block_moves,
    operations.decode_attention,
    operations.prefill_attention,
    operations.latent_decode,
    operations.quantized_decode,
)
"""Those that use kernels, beside the checks."""


class Rehearsal(Stage):
    """Does once what is measured elsewhere."""

    def seconds(self, action: Callable[[], object], rounds: int = 10) -> list[float]:
        action()
        self.synchronize()
        return [1.0]


def compile_beside(tell: Callable[[str], None]) -> None:
    """Have everything compiled that the parts of the benchmark need on this GPU, models aside."""
    start_s = perf_counter()
    count = min(MOST_PROCESSES, cpu_count() or 1)
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "benchmarks.gpu.compiling", str(number), str(count)],
            cwd=ROOT,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for number in range(count)
    ]
    for process in processes:
        try:
            process.wait(max(0.0, start_s + MOST_S - perf_counter()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    tell(f"compiled by {count} processes in {perf_counter() - start_s:.0f} s")


def uses(stage: Stage) -> Iterator[Callable[[], object]]:
    """Yield what uses kernels, by and by."""
    for run in PARTS:
        yield partial(_whole, run, stage)
    for _, _, error_of in checks.checks(stage):
        yield error_of


def _whole(run: Run, stage: Stage) -> None:
    for _ in run(stage):
        pass


def use_share(stage: Stage, number: int, count: int) -> int:
    """Use every `count`-th kernel, from `number` on; return how many uses went well."""
    went_well = 0
    for place, use in enumerate(uses(stage)):
        if place % count == number:
            with suppress(Exception):  # told where it is measured
                use()
                went_well += 1
    return went_well


if __name__ == "__main__":
    logging.disable()
    warnings.simplefilter("ignore")
    use_share(
        Rehearsal(
            device=torch.device("cuda"),
            is_dry=False,
            deadline_s=float("inf"),
            seed=random.SystemRandom().randrange(2**40),
        ),
        int(sys.argv[1]),
        int(sys.argv[2]),
    )
