"""Kernel health: fast kernels disabled on this machine because they failed or differed.

An operation whose kernel failed once is computed by plain torch operations from then on: slower, never wrong.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

import torch

T = TypeVar("T")
EVERY = "all operations"
"""Stands for each of them where no kernel can be used."""

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Health:
    """Args:
    problems: what is wrong with the kernel of each operation that is not used.
    """

    problems: dict[str, str] = field(default_factory=dict)

    def is_well(self, operation: str) -> bool:
        """Whether the kernel of an operation may be used. Pure."""
        return operation not in self.problems and EVERY not in self.problems

    def refuse(self, operation: str, problem: str) -> None:
        """Use the kernel no more, and say so once."""
        if operation not in self.problems:
            self.problems[operation] = problem
            log.warning(
                "the GPU kernel for %s is not used, plain torch operations are, which is slower: %s",
                operation,
                problem,
            )

    def attempt(self, operation: str, kernel: Callable[[], T], plain: Callable[[], T]) -> T:
        """Return what the kernel returns; where it cannot be compiled or launched, what `plain` does.

        Raises:
            torch.AcceleratorError: the device failed while it computed; nothing on it can be trusted.
        """
        try:
            return kernel()
        except torch.AcceleratorError:
            raise
        except torch.OutOfMemoryError as error:
            # What it needs beside the cache may be there again for the next step.
            log.warning("the GPU has no memory left for the kernel for %s: %s", operation, error)
            return plain()
        except Exception as error:  # compilers and launchers raise whatever they like
            self.refuse(operation, f"{type(error).__name__}: {error}"[:500])
            return plain()


HEALTH = Health()
"""Of this process: a kernel that fails for one engine fails for all."""
