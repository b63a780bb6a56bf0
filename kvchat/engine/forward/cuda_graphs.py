"""Steps recorded as CUDA graphs."""

from collections.abc import Callable
from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphReserve:
    """What the largest step that is not recorded allocates beside weights and pools.

    Args:
        num_bytes: of it.
        free_bytes: returns what the device has left for it now.
    """

    num_bytes: int
    free_bytes: Callable[[], int]

    @property
    def is_kept(self) -> bool:
        """Whether as much is left. Asks the device."""
        return self.free_bytes() >= self.num_bytes


NUM_ROUNDS = 2
"""Before a step is recorded: kernels are compiled, and libraries allocate what they keep."""


class CudaGraphs:
    """Records steps, all in one pool of memory."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool = torch.cuda.graph_pool_handle()

    def record(self, step: Callable[[], None]) -> Callable[[], None]:
        """Return what repeats the step.

        Raises:
            RuntimeError: the step waits for the device, which cannot be recorded.
            torch.AcceleratorError: the device failed while it computed; nothing on it can be trusted.
        """
        stream = torch.cuda.Stream(self._device)
        stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(stream):
            for _ in range(NUM_ROUNDS):
                step()
        torch.cuda.current_stream(self._device).wait_stream(stream)
        torch.cuda.synchronize(self._device)
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
                step()
        except torch.AcceleratorError as error:
            # The same class tells of a wait and of a broken device; only the latter answers nothing any more.
            torch.cuda.synchronize(self._device)
            raise RuntimeError(f"a step waits for the device: {error}") from error
        return graph.replay
