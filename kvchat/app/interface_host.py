"""Interface services of a local engine: files, settings, models, and restarting the engine."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from kvchat.app.active_settings import ActiveSettings, engine_values
from kvchat.app.composition import Kvchat
from kvchat.app.config import Settings
from kvchat.app.conversion.child_process import convert_words, gauged
from kvchat.app.engine_swap import EngineSwap
from kvchat.app.interface_storage import InterfaceStorage
from kvchat.app.interface_types import Appearance, Gauged, ModelEntry, SettingEntry, appearance_of
from kvchat.app.model_list import MemoryFit, free_bytes_of, models_here, weight_bytes
from kvchat.app.model_location import located
from kvchat.engine.api.cache_format import canonical_cache_format
from kvchat.engine.api.engine_phase import EnginePhase
from kvchat.engine.api.sampling_params import SamplingParams
from kvchat.engine.api.snapshot import Tier
from kvchat.engine.models.locate import Progress, lasting_name
from kvchat.errors import EngineFailed, ModelError
from kvchat.text.figures import bytes_text
from kvchat.text.shadow import is_shadow, require_exact_blocks, shadow_cost

if TYPE_CHECKING:
    from kvchat.chat.service import Chat


class InterfaceHost(InterfaceStorage):
    """Implements the interface's `Host`.

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
        super().__init__(settings, kvchat.store)
        self._in_force = ActiveSettings(settings, flags, config_file)
        self._kvchat = kvchat
        self._chat = chat
        self._engine = engine

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
        words = self._in_force.change(name, value, reloads=self._engine.config is not None)
        self._settings = self._in_force.settings
        return words

    def models(self) -> Sequence[ModelEntry]:
        named = {summary.session.model for summary in self._kvchat.store.list_sessions()}
        return models_here(self._engine.model, named, self._memory())

    def fetch(self, model: str, progress: Progress) -> None:
        """Prepare a model for `reload`: download it, or read a GGUF file, while the engine goes on.

        Raises:
            ModelError: there is no such model. Whatever `progress` raises ends a download.
        """
        located(self._settings, model, progress)

    def _memory(self) -> MemoryFit:
        """Return what another model has to fit into; a GPU's is asked for once the engine has begun there."""
        if self._engine.status().phase is not EnginePhase.READY:
            return MemoryFit(free_bytes=free_bytes_of(self._settings.engine.device))
        info, snapshot = self._engine.info(), self._engine.snapshot()
        cache_bytes = 0
        if snapshot is not None:
            device = snapshot.tier(Tier.DEVICE)
            # A processor hands out memory as it is written to, a GPU at once.
            is_whole = info.device.startswith("cuda") and device.total_bytes is not None
            cache_bytes = (device.total_bytes or 0) if is_whole else device.used_bytes + device.cached_bytes
        return MemoryFit(
            free_bytes=free_bytes_of(info.device),
            running=Path(info.model_dir),
            cache_bytes=cache_bytes,
        )

    def check_model(self, model: str) -> None:
        """Refuse a model that cannot take the place of the running one, while that goes on.

        Raises:
            ModelError: there is no such model, it is damaged, or it does not fit.
        """
        location = located(self._settings, model)
        from kvchat.session.template.chat_template import ChatTemplate

        ChatTemplate.from_dir(location.path)
        room, needed = self._memory().num_bytes, weight_bytes(location.path)
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
        self._settings = self._in_force.settings
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
            raise
        else:
            self._swap_to(wanted)
        finally:
            self._kvchat.lend_again()
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
        self._kvchat.stop_lending()
        try:
            self._swap_to(wanted)
        finally:
            self._kvchat.lend_again()

    def _swap_to(self, cache_format: str) -> None:
        changes = {"cache_format": cache_format}
        self._engine.swap(changes=changes)
        self._kvchat.use_engine(changes)  # what is lent is named by the format that it has


def _short(origin: str) -> str:
    home = os.path.expanduser("~")
    return origin.replace(home, "~", 1) if origin.startswith(home) else origin
