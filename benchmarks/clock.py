"""Wall time beside processor time: on a busy machine the first is the neighbours', the second our own."""

from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter, process_time


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Seconds that something took. `cpu_s`: of all threads of this process."""

    wall_s: float
    cpu_s: float


def cost_of(action: Callable[[], object]) -> Cost:
    wall_s, cpu_s = perf_counter(), process_time()
    action()
    return Cost(wall_s=perf_counter() - wall_s, cpu_s=process_time() - cpu_s)
