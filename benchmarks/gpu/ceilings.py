"""What the device does at most: copying its memory, and multiplying matrices."""

from collections.abc import Iterator

import torch

from benchmarks.gpu.stage import Figure, Stage

COPY, READ, TO_HOST, FROM_HOST = "copy", "read", "to host", "from host"


def measure(stage: Stage) -> Iterator[Figure]:
    num_bytes = 2**16 if stage.is_dry else 2**31
    source = torch.ones(num_bytes, dtype=torch.uint8, device=stage.device)
    target = torch.empty_like(source)
    yield _ceiling(stage, COPY, stage.seconds(lambda: target.copy_(source)), 2 * num_bytes)
    numbers = source.view(torch.float32)
    yield _ceiling(stage, READ, stage.seconds(lambda: numbers.sum()), num_bytes)
    part = num_bytes // 4
    host = torch.empty(part, dtype=torch.uint8, pin_memory=stage.device.type == "cuda")
    to_host = stage.seconds(lambda: host.copy_(source[:part], non_blocking=True))
    yield _ceiling(stage, TO_HOST, to_host, part)
    from_host = stage.seconds(lambda: target[:part].copy_(host, non_blocking=True))
    yield _ceiling(stage, FROM_HOST, from_host, part)
    size = 64 if stage.is_dry else 8192
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        a, b = (stage.random(size, size, dtype=dtype) for _ in range(2))
        seconds = stage.seconds(lambda a=a, b=b: a @ b)
        yield _ceiling(stage, product(dtype), seconds, 2 * size**3, "TFLOP/s")


def product(dtype: torch.dtype) -> str:
    return f"product, {str(dtype).removeprefix('torch.')}"


def _ceiling(stage: Stage, name: str, seconds: list[float], amount: float, unit: str = "GB/s") -> Figure:
    stage.ceilings[name] = amount / sorted(seconds)[len(seconds) // 2]
    return stage.rate(f"ceiling: {name}", seconds, amount, unit)
