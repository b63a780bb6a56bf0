"""Active settings of a running window, and from when a change takes effect."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
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

_FROM_NOW_ON = {"display.theme": "", "system": "takes effect in new conversations"}
_SAMPLING = "takes effect with your next message"
_ENGINE = "takes effect after /reload"
_LATER = "takes effect at the next start"
_OF_THE_MODEL = "engine.adapter"
"""Made for one model, with which it is named at the start."""
_MEANINGS = {
    "model": "a directory, a GGUF file, a hub id, or starter",
    "system": "system prompt of new sessions",
    "when_full": "evict, compress:FORMAT or shadow:N%, for KV that no longer fits",
    "sampling.max_tokens": "longest answer in tokens; none: no limit",
    "sampling.temperature": "0 is greedy",
    "sampling.top_p": "nucleus sampling: probability that the likeliest tokens sum to",
    "sampling.top_k": "choose among the k likeliest tokens",
    "sampling.min_p": "least probability, relative to the likeliest token",
    "sampling.repetition_penalty": "above 1, repeated tokens become less likely",
    "sampling.seed": "seed of the sampling",
    "display.color": "none: decided by the terminal and NO_COLOR",
    "display.stats": "statistics under an answer",
    "display.theme": "colours of the interface",
    "engine.device": "what computes",
    "engine.dtype": "type of activations and exact KV",
    "engine.weights": "type of weights; int8 and int4 are quantised once",
    "engine.adapter": "directory of a LoRA that is merged into the weights",
    "engine.cache_format": "format of the KV",
    "engine.block_size": "tokens per block",
    "engine.device_bytes": "most memory for KV blocks; none: chosen by the machine",
    "engine.host_bytes": "memory for blocks that a GPU evicts; none: chosen by the machine",
    "engine.disk_bytes": "most disk space for KV blocks; none: no limit",
    "engine.disk_daily_bytes": "most bytes of KV blocks written in a day",
    "engine.eviction": "which cached block makes room",
    "engine.idle_demote_s": "seconds until an idle conversation's blocks move to host memory",
    "engine.max_batch_tokens": "most tokens computed in a step",
    "engine.max_context": "longest context; none: the model's",
    "engine.speculate": "draft tokens that repeat earlier ones",
    "engine.threads": "threads of the processor; none: chosen by the model",
    "remote.url": "server that answers in place of an engine here",
    "remote.key_file": "file with the server's API key",
    "paths.data_dir": "where conversations are stored",
    "paths.cache_dir": "where KV blocks are stored",
    **{name: "another key in the interface" for name in KEYS if name.startswith("keys.")},
}


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
        wanted = read_settings(self._flags, config_file=self._config_file)
        origins = deciding_origins(read_layers(self._flags, config_file=self._config_file))
        entries = []
        for name in KEYS:
            value = value_of(wanted, name)
            now = running.get(name, value_of(self.settings, name))
            entries.append(
                SettingEntry(
                    name=name,
                    value=_text(value),
                    origin=origins.get(name, "default"),
                    in_force=None if now == value else _text(now),
                    summary=_MEANINGS[name],
                    choices=getattr(KEYS[name].read, "words", ()),
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
            return f"{done}; {by} overrides it here"
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
    names = (name for name in KEYS if name.startswith("engine."))
    return {name: getattr(config, name.removeprefix("engine.")) for name in names}


def _text(value: object) -> str:
    return "" if value is None else str(value)
