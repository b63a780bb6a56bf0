"""Settings, models and measurements as the interface shows them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvchat.app.config import Settings
    from kvchat.engine.api.loss import GaugeReport


@dataclass(frozen=True, slots=True, kw_only=True)
class Appearance:
    """How a person wants the interface.

    Args:
        system: the system prompt of new conversations.
        keys: other keys, by the ids of what they do.
    """

    theme: str = ""
    system: str = ""
    keys: Mapping[str, str] = field(default_factory=dict)


def appearance_of(settings: "Settings") -> Appearance:
    keys = {name: key for name, key in settings.keys.items() if key}
    return Appearance(theme=settings.display.theme, system=settings.system, keys=keys)


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingEntry:
    """A setting as it stands. `origin`: who set it; `in_force`: what counts now where that is not `value`;
    `summary`: its meaning; `choices`: all values that it takes, where these are few.
    """

    name: str
    value: str
    origin: str
    in_force: str | None = None
    summary: str = ""
    choices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelEntry:
    """A model that is here. `summary`: its size and what fits. `is_current`: it answers now."""

    name: str
    summary: str
    is_current: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Gauged:
    """What cache formats lose on a conversation.

    Args:
        words: the same as a table, with what is recommended.
        kept_agreement: how often the recommended format is to put the same token first.
    """

    words: str
    report: "GaugeReport"
    kept_agreement: float


@dataclass(frozen=True, slots=True, kw_only=True)
class KvOnDisk:
    """What of a session's KV is stored: what no other session has, and what others have too."""

    own_bytes: int
    shared_bytes: int
