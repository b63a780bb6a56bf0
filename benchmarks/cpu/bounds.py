"""What this machine can do at most: bytes read and multiplications a second, measured beside what they bound.

Other work on the machine takes its share of both, now more and now less, so a limit is measured next to each
figure, and as long as that one takes, not once at the quietest moment.
"""

import time
from collections.abc import Callable
from functools import partial

import torch

READ_BYTES = 512 * 2**20
MATRIX = 2048
LEAST_S = 0.5


class Bounds:
    """Holds the memory that is read, far more than any cache does."""

    def __init__(self, threads: int) -> None:
        torch.set_num_threads(threads)
        self._numbers = torch.ones(READ_BYTES // 4)
        self._matrices = [torch.randn(MATRIX, MATRIX).to(dtype) for dtype in (torch.bfloat16, torch.float32)]
        self.read_bytes_per_s()
        self.flops()

    def read_bytes_per_s(self) -> float:
        """Read memory in order, for about half a second."""
        return READ_BYTES * _times_per_s(self._numbers.sum)

    def flops(self) -> float:
        """Multiply matrices for about half a second each, in the type that is faster here: some processors
        emulate products of bfloat16.
        """
        return 2 * MATRIX**3 * max(_times_per_s(partial(torch.mm, one, one)) for one in self._matrices)


def _times_per_s(work: Callable[[], object]) -> float:
    start_s = time.perf_counter()
    num_times = 0
    while (passed_s := time.perf_counter() - start_s) < LEAST_S:
        work()
        num_times += 1
    return num_times / passed_s
