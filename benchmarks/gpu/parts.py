"""Parts of the benchmark, one after the other: one that fails or has no time left does not end the others."""

import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from time import perf_counter

from benchmarks.gpu.stage import Figure, Stage
from kvchat.engine.kernels.health import HEALTH, Health

Run = Callable[[Stage], Iterator[Figure]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Args:
    least_s: with less time left it is not begun.
    usual_s: what it takes about; what earlier parts may leave out leaves it as much.
    """

    name: str
    run: Run
    least_s: float = 10.0
    usual_s: float = 10.0


@dataclass(slots=True, kw_only=True)
class Outcome:
    """What a part has found. `problem`: why it ended early, or was not begun."""

    name: str
    figures: list[Figure] = field(default_factory=list)
    seconds: float = 0.0
    problem: str | None = None


def run_parts(
    parts: Sequence[Part],
    stage: Stage,
    tell: Callable[[str], None],
    keep: Callable[[Sequence[Outcome]], None] = lambda _: None,
    health: Health = HEALTH,
) -> list[Outcome]:
    """Run all parts that there is time for, telling each figure as it is found.

    Args:
        keep: is given what there is after each part, so that a run that is ended from outside leaves it.
        health: of the kernels; a part that loses one has measured something else, and says so.
    """
    outcomes: list[Outcome] = []
    for number, part in enumerate(parts, 1):
        outcome = Outcome(name=part.name)
        outcomes.append(outcome)
        tell(f"\n{part.name}")
        stage.later_s = sum(later.usual_s for later in parts[number:])
        if not stage.is_dry and stage.left_s < part.least_s:
            outcome.problem = (
                f"not begun: {stage.left_s:.0f} s are left, and it takes about {part.least_s:.0f}"
            )
            tell(f"  {outcome.problem}")
        else:
            refused = {*health.problems}
            _run(part, stage, outcome, tell)
            lost = [f"{name}: {problem}" for name, problem in health.problems.items() if name not in refused]
            if lost and outcome.problem is None:
                outcome.problem = f"plain operations were measured, a kernel is lost: {lost}"[:1000]
                tell(f"  {outcome.problem}")
        keep(outcomes)
    return outcomes


def _run(part: Part, stage: Stage, outcome: Outcome, tell: Callable[[str], None]) -> None:
    start_s = perf_counter()
    try:
        for figure in part.run(stage):
            outcome.figures.append(figure)
            tell(line(figure))
    except Exception as error:  # a part may fail in any way; the others are measured all the same
        outcome.problem = f"{type(error).__name__}: {error}"[:1000]
        tell(f"  failed: {outcome.problem}")
        tell(traceback.format_exc(limit=-4))
    outcome.seconds = perf_counter() - start_s


def line(figure: Figure) -> str:
    share = "" if figure.share is None else f"  {figure.share:6.1%} of the ceiling"
    spread = f"[{figure.low:.4g} .. {figure.high:.4g}]"
    value = f"{figure.value:>10.4g} {figure.unit:<10}"
    return f"  {figure.name:<58} {value} {spread}{share}  {figure.target}".rstrip()
