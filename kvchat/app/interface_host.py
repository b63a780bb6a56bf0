"""Interface services: files, settings, models, and restarting the engine."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, cast

from kvchat.app.active_settings import ActiveSettings, engine_values
from kvchat.app.composition import Kvchat
from kvchat.app.config import Settings
from kvchat.app.conversion.child_process import convert_words, gauged
from kvchat.app.engine_swap import EngineSwap
from kvchat.app.export.formats import Format, format_of
from kvchat.app.interface_types import Appearance, Gauged, KvOnDisk, ModelEntry, SettingEntry, appearance_of
from kvchat.app.model_list import free_bytes_of, models_here, weight_bytes
from kvchat.app.model_location import located
from kvchat.app.retention.session_removal import OTHERS, branch_words, expected_words
from kvchat.engine.api.cache_format import canonical_cache_format
from kvchat.engine.api.engine_phase import EnginePhase
from kvchat.engine.api.sampling_params import SamplingParams
from kvchat.engine.api.snapshot import Tier
from kvchat.engine.models.locate import Progress, lasting_name
from kvchat.errors import EngineFailed, FileTaken, ModelError, ModelNotFound, UsageError
from kvchat.session.tree import SessionId
from kvchat.text.figures import bytes_text
from kvchat.text.shadow import is_shadow, require_exact_blocks, shadow_cost

if TYPE_CHECKING:
    from kvchat.app.retention.block_owners import StoredKv
    from kvchat.chat.service import Chat
    from kvchat.remote.chat_service import RemoteChat


class InterfaceHost:
    """What the interface may do with the machine behind it.

    Args:
        settings: as this run has them.
        kvchat: the open store.
        chat: what goes on with another model after a change.
        engine: what is loaded again.
        config_file: the person's file, where another than the usual one was named.
        flags: the settings that were given with the command.
    """

    def __init__(
        self,
        settings: Settings,
        kvchat: Kvchat,
        chat: "Chat",
        engine: EngineSwap,
        config_file: Path | None = None,
        flags: Mapping[str, object] | None = None,
    ) -> None:
        self._kept: StoredKv | None = None
        self._in_force = ActiveSettings(settings, flags, config_file)
        self._kvchat = kvchat
        self._chat = chat
        self._engine = engine

    @property
    def _settings(self) -> Settings:
        return self._in_force.settings

    def begin(self) -> None:
        """Begin to load, now that the window is drawn: the chat at once, the engine in its own thread.

        Raises:
            ModelError: the tokenizer cannot be read.
        """
        self._kvchat.finish_load()
        self._engine.start()

    def appearance(self) -> Appearance:
        return appearance_of(self._settings)

    def sampling(self) -> SamplingParams:
        return self._settings.sampling

    def settings(self) -> Sequence[SettingEntry]:
        """Return every setting.

        Raises:
            ConfigError: a file cannot be read.
        """
        config = self._engine.config
        running = {} if config is None else engine_values(config) | {"model": self._engine.model}
        return [replace(one, origin=_short(one.origin)) for one in self._in_force.entries(running)]

    def change_setting(self, name: str, value: str) -> str:
        """Write a setting into the person's file, or take it out; see `ActiveSettings.change`."""
        return self._in_force.change(name, value, reloads=self._engine.config is not None)

    def models(self) -> Sequence[ModelEntry]:
        named = {summary.session.model for summary in self._kvchat.store.list_sessions()}
        return models_here(self._engine.model, named, *self._room())

    def fetch(self, model: str, progress: Progress) -> None:
        """Prepare a model for `reload`: download it, or read a GGUF file, while the engine goes on.

        Raises:
            ModelError: there is no such model. Whatever `progress` raises ends a download.
        """
        located(self._settings, model, progress)

    def _room(self) -> tuple[int | None, Path | None]:
        """Return the bytes that another model may take, and the directory of the one that runs.

        What the running model takes is counted as free, since it gives way. The bytes are None before the
        engine has begun on a GPU, the directory is None while no model runs.
        """
        if self._engine.status().phase is not EnginePhase.READY:
            return free_bytes_of(self._settings.engine.device), None
        info, snapshot = self._engine.info(), self._engine.snapshot()
        running, free_bytes = Path(info.model_dir), free_bytes_of(info.device)
        cache_bytes = 0
        if snapshot is not None:
            device = snapshot.tier(Tier.DEVICE)
            # A processor hands out memory as it is written to, a GPU at once.
            is_whole = info.device.startswith("cuda") and device.total_bytes is not None
            cache_bytes = (device.total_bytes or 0) if is_whole else device.used_bytes + device.cached_bytes
        room = None if free_bytes is None else free_bytes + cache_bytes + weight_bytes(running)
        return room, running

    def check_model(self, model: str) -> None:
        """Refuse a model that cannot take the place of the running one, while that goes on.

        Raises:
            ModelError: there is no such model, it is damaged, or it does not fit.
        """
        location = located(self._settings, model)
        from kvchat.session.template.chat_template import ChatTemplate

        ChatTemplate.from_dir(location.path)
        (room, _), needed = self._room(), weight_bytes(location.path)
        is_as_stored = self._settings.engine.weights == "auto"  # else it may take less
        if is_as_stored and room is not None and needed > room:
            raise ModelError(
                f"{model} does not fit: it takes {bytes_text(needed)}, and {bytes_text(room)} can be had;"
                " /model lists what fits"
            )

    def reload(self, model: str | None = None) -> None:
        """Load the engine again, or another model.

        Raises:
            ModelError: there is no such model; the engine is as it was.
            ConfigError: what is set cannot be read; the engine is as it was.
        """
        changes = self._in_force.engine_changes()
        if model is None:
            self._kvchat.stop_lending()
            self._engine.swap(changes=changes)
            self._engine_changed(changes)
            self._kvchat.lend_again()
            return
        from kvchat.session.template.chat_template import ChatTemplate

        location = located(self._settings, model)
        template = ChatTemplate.from_dir(location.path)
        name = lasting_name(location)
        # Others have been promised the model that goes.
        self._kvchat.stop_lending()
        self._engine.swap(name, location.path, changes=changes)
        self._engine_changed(changes)
        self._chat.use(template, name)
        self._kvchat.lend_again(location.path, template)

    def _engine_changed(self, changes: Mapping[str, object]) -> None:
        self._in_force.engine_changed(changes)
        self._kvchat.use_engine(changes)

    def gauge(self, session_id: str, branch: str, cache_format: str) -> Gauged:
        """Return what formats lose on a conversation.

        Raises:
            EngineFailed: it cannot be measured.
        """
        return gauged(self._settings, session_id, branch, cache_format)

    def format_cost(self, session_id: str, cache_format: str) -> str:
        """Return what a session would save and lose in another format.

        Raises:
            UsageError: there is no such format; EngineFailed: it cannot be converted.
        """
        wanted = canonical_cache_format(cache_format)
        if not is_shadow(wanted):
            return convert_words(self._settings, session_id, wanted, self._engine.model, dry_run=True)
        session = self._kvchat.store.find(session_id)
        require_exact_blocks(session)
        return shadow_cost(self.gauge(session_id, session.active_branch, wanted).report)

    def use_format(self, session_id: str, cache_format: str) -> str:
        """Convert a session while there is no engine, then load it again in that format. For a shadow there
        is nothing to convert.

        Raises:
            EngineFailed: the session is as it was, and the engine begins to load again as it was.
            UsageError: the session has no exact blocks for a shadow; the engine goes on.
        """
        wanted = canonical_cache_format(cache_format)
        if is_shadow(wanted):
            require_exact_blocks(self._kvchat.store.find(session_id))
            self._load_in(wanted)
            return f"its KV stays exact, and is looked at through {wanted}"
        self._kvchat.stop_lending()
        self._engine.close()  # what it has not saved yet is to be converted too
        try:
            words = convert_words(self._settings, session_id, wanted, self._engine.model, dry_run=False)
        except BaseException:
            self._engine.swap()
            self._kvchat.lend_again()
            raise
        self._load_in(wanted)
        return words

    def go_on_in(self, session_id: str, cache_format: str) -> str:
        """Convert a session and load the engine in that format; where it cannot be converted, only load."""
        try:
            return self.use_format(session_id, cache_format)
        except EngineFailed as error:
            wanted = canonical_cache_format(cache_format)
            self._load_in(wanted)
            return f"all of it is computed in {wanted}; nothing stored was converted: {error}"

    def _load_in(self, wanted: str) -> None:
        """Load the engine again, in another format."""
        changes = {"cache_format": wanted}
        self._kvchat.stop_lending()
        try:
            self._engine.swap(changes=changes)
            self._kvchat.use_engine(changes)  # what is lent is named by the format that it has
        finally:
            self._kvchat.lend_again()

    def on_disk(self, is_stopped: Callable[[], bool]) -> Mapping[SessionId, KvOnDisk]:
        """Count what of each session's KV is on disk; see `StoredKv.count`.

        Raises:
            StorageError: it cannot be counted.
        """
        from kvchat.app.retention.block_owners import StoredKv

        self._kept = self._kept or StoredKv(self._kvchat.store, self._settings)
        return self._kept.count(is_stopped)

    def export(self, session_id: SessionId, branch: str, destination: str, *, force: bool = False) -> str:
        """Write a session to the file or in the form that is named, and say what was written.

        Args:
            branch: the one that Markdown and the web page show.
            destination: a file, or a format; empty: a bundle.
            force: replace the file if it exists.

        Raises:
            FileTaken: it exists.
            UsageError: the file's name does not say what it should hold.
            StorageError: it cannot be written.
        """
        # What reads blocks is imported when it is needed: the window's first frame does without.
        from kvchat.app.export.exporter import Exporter, target_of

        session = self._kvchat.store.session(session_id)
        output, format = _meant(destination)
        target = target_of(output, session, format).absolute()
        if target.exists() and not force:
            raise FileTaken(f"{target} exists already")
        exporter = Exporter(self._settings, self._kvchat.store)
        return exporter.write(session, branch if format.is_one_branch else None, format, target).words

    def freed_by_deleting(self, session_id: SessionId, branch: str | None = None) -> str:
        """Say what deleting a session, or one of its branches, would free on the disk, and what of it would
        stay.
        """
        if branch is None:
            return expected_words(lambda: self._kvchat.store.would_remove([session_id]))
        plan = self._kvchat.store.removal_of(session_id, branch)
        freed = expected_words(lambda: self._kvchat.store.would_remove_branch(plan), OTHERS)
        return f"{branch_words(plan)}.\n{freed}"


class RemoteHost(InterfaceHost):
    """The same while a server computes: knows the server's models in place of those that are here."""

    @property
    def _remote(self) -> "RemoteChat":
        return cast("RemoteChat", self._chat)

    def begin(self) -> None:
        """Begin to ask the server what its cache holds."""
        self._remote.engine.watch_cache()

    def models(self) -> Sequence[ModelEntry]:
        chat = self._remote
        return [
            ModelEntry(name=name, summary=f"at {chat.endpoint.name}", is_current=name == chat.model)
            for name in chat.endpoint.models()
        ]

    def fetch(self, model: str, progress: Progress) -> None:
        """Do nothing: the model is on the server."""

    def check_model(self, model: str) -> None:
        if model not in self._remote.endpoint.models():
            raise ModelNotFound(f"{self._remote.endpoint.name} has no model {model!r}; /model lists its own")

    def gauge(self, session_id: str, branch: str, cache_format: str) -> Gauged:
        raise UsageError("the cache is the server's; measure with a model that runs here")

    def format_cost(self, session_id: str, cache_format: str) -> str:
        raise UsageError("the cache is the server's; choose a format with a model that runs here")

    def reload(self, model: str | None = None) -> None:
        """Go on with another model of the server.

        Raises:
            UsageError: none was named: there is nothing to load here.
        """
        if model is None:
            raise UsageError("the model runs on the server; there is nothing to load again here")
        self._remote.use_model(model)


def _meant(destination: str) -> tuple[Path | None, Format]:
    """Return the file and the format that a person asks for in one word."""
    if not destination:
        return None, Format.BUNDLE
    named = {name: format for format in Format for name in (format.value, format.suffix)}
    if destination in named:
        return None, named[destination]
    path = Path(destination).expanduser()
    format = format_of(path)
    if format is None:
        raise UsageError(f"{destination} does not say what to write: end it in .md, .html, .json or .kvchat")
    return path, format


def _short(origin: str) -> str:
    home = os.path.expanduser("~")
    return origin.replace(home, "~", 1) if origin.startswith(home) else origin
