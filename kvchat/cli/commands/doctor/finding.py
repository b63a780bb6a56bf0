"""Result of one check of `kvchat doctor`."""

from dataclasses import field
from enum import StrEnum

from kvchat.platform.values import dataclass


class CheckState(StrEnum):
    """`LOOK`: it works, and there is something to do about it."""

    OK = "ok"
    LOOK = "look"
    BROKEN = "broken"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """What one check has found.

    Args:
        lines: for people; the first one says it all.
        advice: what to do; None where all is well.
        values: the same for programs.
        exit_code: with which the command ends if this is broken.
    """

    name: str
    lines: tuple[str, ...]
    state: CheckState = CheckState.OK
    advice: str | None = None
    values: dict[str, object] = field(default_factory=dict)
    exit_code: int = 0
