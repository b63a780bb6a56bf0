"""On what a part of the benchmark plays: device, sizes, time; and how it measures."""

from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median
from time import perf_counter

import torch
from torch import Tensor

FLUSHES = 4
"""Of 256 MiB each: about half a millisecond, several times what handing in a launch takes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One line of the table.

    Args:
        value: the median.
        low, high: smallest and largest of the rounds.
        share: of the ceiling of the same run; None: there is none.
        target: what is aimed at, in words.
    """

    name: str
    unit: str
    value: float
    low: float
    high: float
    share: float | None = None
    target: str = ""


@dataclass(slots=True, kw_only=True)
class Stage:
    """Args:
    is_dry: tiny sizes on the processor, under Triton's interpreter: nothing is measured, everything runs.
    deadline_s: when the whole run is to be over, by `perf_counter`.
    ceilings: bytes or operations a second, as measured in this run.
    later_s: what the parts behind this one take about.
    """

    device: torch.device
    is_dry: bool
    deadline_s: float
    seed: int
    ceilings: dict[str, float] = field(default_factory=dict)
    later_s: float = 0.0

    @property
    def left_s(self) -> float:
        return self.deadline_s - perf_counter()

    @property
    def spare_s(self) -> float:
        """Seconds for what may be left out."""
        return self.left_s - self.later_s

    def random(self, *size: int, dtype: torch.dtype) -> Tensor:
        """Return normal numbers, different in each run."""
        generator = torch.Generator(self.device).manual_seed(self.seed)
        self.seed += 1
        return torch.randn(size, generator=generator, device=self.device).to(dtype)

    def synchronize(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def seconds(self, action: Callable[[], object], rounds: int = 10) -> list[float]:
        """Return how long an action takes, by the device's own clock; it is warmed up first.

        Each round begins with a cache that holds something else; filling it takes the device long enough for
        the host to hand in what is timed.
        """
        rounds = 2 if self.is_dry else rounds
        for _ in range(1 if self.is_dry else 3):
            action()
        self.synchronize()
        return [self._second(action) for _ in range(rounds)]

    def _second(self, action: Callable[[], object]) -> float:
        if self.device.type != "cuda":
            start_s = perf_counter()
            action()
            return perf_counter() - start_s
        flushed = torch.empty(2**28, dtype=torch.uint8, device=self.device)
        for _ in range(FLUSHES):
            flushed.zero_()
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        action()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) / 1000

    def rate(
        self,
        name: str,
        seconds: list[float],
        amount: float,
        unit: str,
        *,
        ceiling: str | None = None,
        target: str = "",
    ) -> Figure:
        """Return what was achieved with so many bytes, operations or tokens, beside a ceiling of this run."""
        scale = {"GB/s": 1e9, "TFLOP/s": 1e12}.get(unit, 1.0)
        rates = [amount / each for each in seconds]
        top = self.ceilings.get(ceiling) if ceiling else None
        return Figure(
            name=name,
            unit=unit,
            value=median(rates) / scale,
            low=min(rates) / scale,
            high=max(rates) / scale,
            share=median(rates) / top if top else None,
            target=target,
        )
