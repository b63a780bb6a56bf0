"""The machine behind the window, on a script: settings, models, formats, files."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import count
from threading import Event

from kvchat.app.interface_types import Appearance, Gauged, KvOnDisk, ModelEntry, SettingEntry
from kvchat.engine.api.loss import GaugeReport
from kvchat.engine.api.sampling_params import SamplingParams
from kvchat.errors import EngineFailed, FileTaken, ModelNotFound, UsageError
from kvchat.session.tree import SessionId
from tests.ui.gate import HELD_S


class ScriptedFiles:
    """A machine that writes nothing, and knows which files, settings and models there are; without `changing`
    it is still at work on another format.
    """

    def __init__(self, shown_as: Appearance | None = None) -> None:
        self.written: dict[str, tuple[SessionId, str]] = {}
        self.shown_as = shown_as or Appearance()
        self.values = {
            "display.theme": "kvchat",
            "sampling.temperature": "0.0",
            "system": "",
            "engine.block_size": "32",
        }
        self.in_force: dict[str, str] = {}
        self.loaded: list[str | None] = []
        self.formats: list[tuple[str, str]] = []
        self.has_shadows = True
        self.gauged = GaugeReport(
            model="m", num_tokens=9, num_replayed=1, exact_bytes=9, exact_token_bytes=1.0, formats=()
        )
        self.more_words = ""
        self.stored: dict[SessionId, KvOnDisk] = {}
        self.changing = Event()
        self.changing.set()
        self.downloaded = Event()

    def appearance(self) -> Appearance:
        return self.shown_as

    def settings(self) -> Sequence[SettingEntry]:
        return [
            SettingEntry(
                name=name,
                value=value,
                origin="file",
                in_force=self.in_force.get(name),
                summary=f"meaning of {name}",
                choices=("32", "64") if name == "engine.block_size" else (),
            )
            for name, value in self.values.items()
        ]

    def sampling(self) -> SamplingParams:
        return SamplingParams(temperature=float(self.values["sampling.temperature"]))

    def change_setting(self, name: str, value: str) -> str:
        if name not in self.values:
            raise UsageError(f"there is no setting {name!r}")
        self.values[name] = value
        if name == "system":
            self.shown_as = replace(self.shown_as, system=value)
        if name == "display.theme":
            self.shown_as = replace(self.shown_as, theme=value)
        return f"{name} = {value}"

    def models(self) -> Sequence[ModelEntry]:
        return [
            ModelEntry(name="starter", summary="30 MiB · all of its context fits", is_current=True),
            ModelEntry(name="large", summary="9 GiB · does not fit"),
        ]

    def fetch(self, model: str, progress: Callable[[int, int], None]) -> None:
        """Download `big` in pieces until it is stopped or let through; the others are here."""
        if model == "nowhere":
            raise ModelNotFound("there is no model 'nowhere'")
        num_pieces = count(1)
        while model == "big" and not self.downloaded.wait(0.01):
            progress(next(num_pieces) << 20, 1 << 30)

    def check_model(self, model: str) -> None:
        if model == "nowhere":
            raise ModelNotFound("there is no model 'nowhere'")

    def reload(self, model: str | None = None) -> None:
        self.loaded.append(model)

    def gauge(self, session_id: str, branch: str, cache_format: str) -> Gauged:
        if cache_format == "int3":
            raise UsageError("cache format 'int3' is unknown")
        words = f"{session_id} on {branch}: {cache_format or 'all'} lose little"
        return Gauged(words=words + self.more_words, report=self.gauged, kept_agreement=0.99)

    def format_cost(self, session_id: str, cache_format: str) -> str:
        if cache_format == "int3":
            raise UsageError("cache format 'int3' is unknown")
        if cache_format.startswith("shadow") and not self.has_shadows:
            raise EngineFailed("this model turns its keys in a way that is unknown")
        return "2 MiB would be 1 MiB"

    def use_format(self, session_id: str, cache_format: str) -> str:
        if cache_format == "int2":
            raise UsageError("no exact KV of this session is stored")
        self.formats.append((session_id, cache_format))
        self.changing.wait(HELD_S)
        return f"converted to {cache_format}"

    def go_on_in(self, session_id: str, cache_format: str) -> str:
        self.formats.append((session_id, cache_format))
        return f"goes on in {cache_format}"

    def on_disk(self, is_stopped: Callable[[], bool]) -> Mapping[SessionId, KvOnDisk]:
        return self.stored

    def export(self, session_id: SessionId, branch: str, request: str, *, force: bool = False) -> str:
        if not request.endswith(".md"):
            raise UsageError(f"{request} does not say what to write")
        if request in self.written and not force:
            raise FileTaken(f"{request} exists already")
        self.written[request] = session_id, branch
        return f"wrote {request}"

    def freed_by_deleting(self, session_id: SessionId, branch: str | None = None) -> str:
        return f"the blocks of {session_id if branch is None else branch} would be freed"
