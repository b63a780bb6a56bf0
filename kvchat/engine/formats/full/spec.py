"""Full layers: every query sees every earlier token."""

from dataclasses import dataclass
from typing import ClassVar

from kvchat.engine.formats.spec import CacheSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class FullSpec(CacheSpec):
    """A layer whose queries see every earlier token."""

    kind: ClassVar[str] = "full"
