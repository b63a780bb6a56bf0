"""Steps recorded as CUDA graphs."""

from collections.abc import Callable

import torch

NUM_ROUNDS = 2
"""Before a step is recorded: kernels are compiled, and libraries allocate what they keep."""


class CudaGraphs:
    """Records steps, all in one pool of memory."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool = torch.cuda.graph_pool_handle()

    def record(self, step: Callable[[], None]) -> Callable[[], None]:
        stream = torch.cuda.Stream(self._device)
        stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(stream):
            for _ in range(NUM_ROUNDS):
                step()
        torch.cuda.current_stream(self._device).wait_stream(stream)
        torch.cuda.synchronize(self._device)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            step()
        return graph.replay
