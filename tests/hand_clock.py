"""Time that passes when a test says so."""

from dataclasses import dataclass


@dataclass
class HandClock:
    """Seconds that pass only when somebody adds them."""

    now_s: float = 0.0

    def __call__(self) -> float:
        return self.now_s
