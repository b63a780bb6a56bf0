"""What this machine can do at most, measured in the same run: bytes read and multiplications a second."""

import time

import torch

READ_BYTES = 512 * 2**20
MATRIX = 2048


def read_bytes_per_s(threads: int) -> float:
    """Read memory in order, far more than any cache holds."""
    torch.set_num_threads(threads)
    numbers = torch.ones(READ_BYTES // 4)
    numbers.sum()
    return READ_BYTES / _least_s(lambda: numbers.sum())


def flops(threads: int) -> float:
    """Multiply bfloat16 matrices."""
    torch.set_num_threads(threads)
    left = torch.randn(MATRIX, MATRIX, dtype=torch.bfloat16)
    right = torch.randn(MATRIX, MATRIX, dtype=torch.bfloat16)
    left @ right
    return 2 * MATRIX**3 / _least_s(lambda: left @ right)


def _least_s(work: object, rounds: int = 7) -> float:
    assert callable(work)
    times = []
    for _ in range(rounds):
        start_s = time.perf_counter()
        work()
        times.append(time.perf_counter() - start_s)
    return min(times)
