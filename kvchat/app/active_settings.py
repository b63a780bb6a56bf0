"""Active settings of a running window, and from when a change takes effect."""

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from kvchat.app.config import (
    FLAG,
    KEYS,
    Settings,
    deciding_origins,
    did_you_mean,
    overruling_origin,
    own_file,
    read_layers,
    read_settings,
    value_of,
)
from kvchat.app.config_edit import change_file
from kvchat.app.interface_types import SettingEntry
from kvchat.engine.api.config import EngineConfig
from kvchat.errors import UsageError

_FROM_NOW_ON = {
    "display.theme": "",
    "system": "takes effect in new conversations, and at the next start",
}
_SAMPLING = "takes effect with your next message, and at the next start"
_ENGINE = "takes effect with /reload, and at the next start"
_LATER = "takes effect at the next start"
_OF_THE_MODEL = "engine.adapter"
"""Made for one model, with which it is named at the start."""


class ActiveSettings:
    """The settings of this window, and those of its files.

    Args:
        settings: as this run began.
        flags: what overruled the files then, by the names of `KEYS`.
        config_file: the person's file, where another than the usual one was named.

    Attributes:
        settings: as they count now.
    """

    def __init__(
        self, settings: Settings, flags: Mapping[str, object] | None = None, config_file: Path | None = None
    ) -> None:
        self.settings = settings
        self._flags = flags
        self._config_file = config_file
        self._awaiting: dict[str, object] = {}

    def entries(self, running: Mapping[str, object]) -> Sequence[SettingEntry]:
        """Return every setting as the files and flags have it, with the value in force where that differs.

        Args:
            running: what the engine runs with, where that is known better than by the settings.

        Raises:
            ConfigError: a file cannot be read.
        """
        layers = read_layers(self._flags, config_file=self._config_file)
        wanted = read_settings(self._flags, config_file=self._config_file)
        origins = deciding_origins(layers)
        found = {name: value for layer in layers for name, value in layer.values.items()}
        entries = []
        for name in KEYS:
            value = value_of(wanted, name)
            now = running.get(name, value_of(self.settings, name))
            entries.append(
                SettingEntry(
                    name=name,
                    value=_text(found.get(name, value)),
                    origin=origins.get(name, "default"),
                    in_force=None if now == value else _text(now),
                )
            )
        return entries

    def change(self, name: str, value: str, *, reloads: bool = True) -> str:
        """Write a setting into the person's file, or take it out, let it count where it can, and say when.

        Args:
            reloads: there is an engine here that can be loaded again.

        Raises:
            UsageError: there is no such setting, or it does not take the value.
            ConfigError, StorageError: the file cannot be changed.
        """
        if name not in KEYS:
            raise UsageError(f"there is no setting {name!r}{did_you_mean(name, KEYS)}")
        file = own_file(self._config_file)
        written = change_file(file, name, value or None)
        done = f"{name} = {written}" if written else f"{name} is no longer set"
        layers = read_layers(self._flags, config_file=self._config_file)
        overruling = overruling_origin(name, file, layers)
        if overruling is not None:
            by = "what the command was given" if overruling == FLAG else overruling
            return f"{done}; {by} overrules it here"
        when = self._take_up(name, reloads=reloads)
        return f"{done}; {when}" if when else done

    def engine_changes(self) -> dict[str, object]:
        """Return what was changed of the engine and counts with the next one, by its names.

        Raises:
            ConfigError: a file cannot be read.
        """
        if not self._awaiting:
            return {}
        wanted = read_settings(self._flags, config_file=self._config_file)
        return {name.partition(".")[2]: value_of(wanted, name) for name in self._awaiting}

    def engine_changed(self, changes: Mapping[str, object]) -> None:
        """Note that the engine has begun anew with these changes."""
        engine = replace(self.settings.engine, **changes)  # type: ignore[arg-type]
        self.settings = replace(self.settings, engine=engine)
        for field, value in changes.items():
            name = f"engine.{field}"
            # What was set again while the engine began awaits the next one.
            if self._awaiting.get(name) == value:
                self._awaiting.pop(name, None)

    def _take_up(self, name: str, *, reloads: bool) -> str:
        """Let a setting count now where it can, and return from when it does."""
        section, _, field = name.rpartition(".")
        is_engine = section == "engine" and name != _OF_THE_MODEL and reloads
        if section != "sampling" and name not in _FROM_NOW_ON and not is_engine:
            return _LATER
        value = value_of(read_settings(self._flags, config_file=self._config_file), name)
        if is_engine:
            self._awaiting[name] = value
            return _ENGINE
        changed: dict[str, Any] = {field: value}
        if section:
            changed = {section: replace(getattr(self.settings, section), **changed)}
        self.settings = replace(self.settings, **changed)
        return _FROM_NOW_ON.get(name, _SAMPLING)


def engine_values(config: EngineConfig) -> dict[str, object]:
    """Return what an engine runs with, by the names of `KEYS`."""
    values = {f"engine.{field.name}": getattr(config, field.name) for field in fields(config)}
    return {name: value for name, value in values.items() if name in KEYS}


def _text(value: object) -> str:
    return "" if value is None else str(value)
