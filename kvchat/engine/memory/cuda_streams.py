"""Streams of a CUDA device."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from kvchat.engine.kernels.stream_protocol import Event, Stream, Work


@dataclass(frozen=True, slots=True)
class CudaEvent:
    """The end of some work on a stream, and its beginning."""

    begun: torch.cuda.Event
    ended: torch.cuda.Event

    @property
    def is_done(self) -> bool:
        return bool(self.ended.query())

    def wait(self) -> None:
        self.ended.synchronize()

    def seconds(self) -> float:
        return float(self.begun.elapsed_time(self.ended)) / 1000


class CudaStreams:
    """The stream of the thread that makes this computes; each lane is a stream of its own."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._computing = torch.cuda.current_stream(device)
        self._lanes = {lane: torch.cuda.Stream(device) for lane in Stream}

    def compute(self, work: Work) -> Event:
        return self._record(self._computing, work)

    def mark(self) -> Event:
        return self._record(self._computing, lambda: None)

    def beside(self, lane: Stream, work: Work, after: Sequence[Event]) -> Event:
        stream = self._lanes[lane]
        for event in after:
            assert isinstance(event, CudaEvent)
            stream.wait_event(event.ended)
        return self._record(stream, work)

    def join(self, event: Event) -> None:
        assert isinstance(event, CudaEvent)
        self._computing.wait_event(event.ended)

    def _record(self, stream: torch.cuda.Stream, work: Work) -> CudaEvent:
        begun, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        with torch.cuda.stream(stream):
            begun.record(stream)
            work()
            ended.record(stream)
        return CudaEvent(begun, ended)
