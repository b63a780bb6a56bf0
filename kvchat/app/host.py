"""Services of the machine behind the interface: files, settings, models."""

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Protocol

from kvchat.app.services import SessionFileService
from kvchat.engine.api.sampling_params import SamplingParams
from kvchat.platform.values import dataclass

if TYPE_CHECKING:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingEntry:
    """A setting as it stands. `origin`: who set it; `in_force`: what counts now where that is not `value`."""

    name: str
    value: str
    origin: str
    in_force: str | None = None


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


class InterfaceServices(SessionFileService, Protocol):
    """The machine. Every method but `appearance` and `sampling` may wait and belongs into a thread."""

    def appearance(self) -> Appearance: ...

    def settings(self) -> Sequence[SettingEntry]: ...

    def sampling(self) -> SamplingParams:
        """Return how tokens are to be chosen now."""
        ...

    def change_setting(self, name: str, value: str) -> str:
        """Write a setting into the person's file (an empty value takes it out) and say what was done.

        What counts at once is in `appearance` and `sampling` then; what does not is said.

        Raises:
            KvchatError: the value is not possible, or the file cannot be written.
        """
        ...

    def models(self) -> Sequence[ModelEntry]: ...

    def reload(self, model: str | None = None) -> None:
        """Close the engine and begin to load it again, or another model in its place.

        Raises:
            KvchatError: there is no such model; the engine is as it was.
        """
        ...

    def gauge(self, session_id: str, branch: str, cache_format: str) -> Gauged:
        """Measure what cache formats lose on a conversation.

        Args:
            cache_format: to be measured; empty: the usual ones.

        Raises:
            KvchatError: it cannot be measured; the message says why.
        """
        ...

    def format_cost(self, session_id: str, cache_format: str) -> str:
        """Return in words what a session's KV would save and lose in another format.

        Raises:
            KvchatError: there is no such format, or the session cannot be converted to it.
        """
        ...

    def go_on_in(self, session_id: str, cache_format: str) -> str:
        """Begin to load the engine in another format for a session that has no room; say what was done.

        What is stored of it is converted; where that cannot be, it is computed again in the format.
        """
        ...

    def use_format(self, session_id: str, cache_format: str) -> str:
        """Convert a session's KV, begin to load the engine in that format, and say what was done.

        Raises:
            KvchatError: it cannot be converted, and is as it was; the engine is loaded as it was.
        """
        ...
