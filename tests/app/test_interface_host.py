"""What the interface does with the machine, on the starter model and real files."""

import json
import os
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import pytest

from kvchat.app.composition import Kvchat, opened
from kvchat.app.config import Settings, read_settings
from kvchat.app.engine_swap import EngineSwap
from kvchat.app.interface_host import InterfaceHost
from kvchat.app.ipc.client import EngineClientProxy, borrow
from kvchat.app.ipc.socket_path import identity_of, socket_path
from kvchat.app.model_list import describe, free_bytes_of, models_here
from kvchat.chat.service import Chat
from kvchat.engine.api.engine_phase import EnginePhase
from kvchat.engine.api.snapshot import Tier
from kvchat.engine.models.locate import locate_model
from kvchat.errors import ConfigError, EngineFailed, ModelError, ModelNotFound, ModelUnreadable, UsageError
from kvchat.session.kv.provenance import Origin
from kvchat.session.tree import Turn
from kvchat.text.figures import bytes_text
from tests.patience import wait_until

pytestmark = [pytest.mark.cpu, pytest.mark.usefixtures("loading_pays", "quick_children")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """What a window works with, its engine begun."""

    settings: Settings
    kvchat: Kvchat
    chat: Chat
    host: InterfaceHost


@pytest.fixture
def window(home: Path, tiny_model: Path) -> Iterator[Window]:
    settings = read_settings({"sampling.max_tokens": 4})
    engine = EngineSwap()
    with opened(settings, engine) as kvchat:
        chat = kvchat.load(None, str(tiny_model))
        host = InterfaceHost(settings, kvchat, chat, engine)
        engine.start()
        yield Window(settings=settings, kvchat=kvchat, chat=chat, host=host)


def test_an_engine_begins_anew_with_the_same_and_with_another_model(window: Window, tiny_model: Path) -> None:
    chat, host = window.chat, window.host
    conversation = chat.create("talk")
    list(chat.send(conversation, "one"))
    chat.close(conversation)
    host.reload()
    conversation = chat.open("talk")
    list(chat.send(conversation, "two"))
    chat.close(conversation)
    with pytest.raises(ModelNotFound):
        host.reload("no such model")
    host.reload("starter")
    conversation = chat.open("talk")
    list(chat.send(conversation, "three"))
    models = [turn.model for turn in conversation.turns[1::2]]
    assert models == [str(tiny_model), str(tiny_model), "starter"]
    assert [one.name for one in host.models() if one.is_current] == ["starter"]


def test_a_model_that_cannot_be_loaded_is_refused_before_anything_is_let_go(
    window: Window, tiny_model: Path, tmp_path: Path
) -> None:
    host = window.host
    with pytest.raises(ModelNotFound):
        host.check_model("no such model")
    damaged = tmp_path / "damaged"
    shutil.copytree(tiny_model, damaged)
    weights = next(damaged.glob("*.safetensors"))
    os.truncate(weights, weights.stat().st_size - 1)
    with pytest.raises(ModelUnreadable, match="not a whole safetensors file"):
        host.check_model(str(damaged))
    wait_until(lambda: host._room()[1] is not None)
    room, _ = host._room()
    assert room is not None
    huge = tmp_path / "huge"
    shutil.copytree(tiny_model, huge)
    weights = next(huge.glob("*.safetensors"))
    num_bytes = room * 2
    header = json.dumps({"w": {"dtype": "U8", "shape": [num_bytes], "data_offsets": [0, num_bytes]}})
    weights.write_bytes(len(header).to_bytes(8, "little") + header.encode())
    os.truncate(weights, 8 + len(header) + num_bytes)  # of which nothing is on the disk
    with pytest.raises(ModelError, match="does not fit: it takes"):
        host.check_model(str(huge))
    host.check_model("starter")
    assert not window.chat.engine.info().model.endswith("starter")


def say(chat: Chat, text: str) -> Turn:
    conversation = chat.open("talk")
    list(chat.send(conversation, text))
    chat.close(conversation)
    return conversation.turns[-1]


def test_a_conversation_goes_on_in_another_format_and_back(window: Window) -> None:
    chat, host = window.chat, window.host
    session = chat.create("talk").session
    assert say(chat, "remember the sea " * 40).exact
    assert host.use_format(session.id, "int4").endswith("saved")
    answer = say(chat, "and now?")
    assert not answer.exact
    assert answer.usage.cached_tokens > 64
    assert "computed exactly again" in host.use_format(session.id, "exact")
    assert say(chat, "and now?").fingerprint != answer.fingerprint


def test_a_conversation_is_looked_at_through_a_shadow_and_its_blocks_stay(window: Window) -> None:
    chat, host = window.chat, window.host
    session = chat.create("talk").session
    assert say(chat, "remember the sea " * 40).exact
    assert "stays exact" in host.use_format(session.id, "shadow:64:forced")
    answer = say(chat, "and now?")
    assert not answer.exact
    assert answer.usage.cached_tokens > 64
    assert window.kvchat.store.find("talk").namespace == ""


def test_a_converted_conversation_gets_no_shadow(window: Window) -> None:
    session = window.chat.create("talk").session
    origin = Origin(cache_format="int4", source="exact", fingerprint="0" * 64)
    window.kvchat.store.use_blocks_of(session.id, origin.namespace)
    for refused in (window.host.format_cost, window.host.use_format):
        with pytest.raises(UsageError, match="converted to int4, and a shadow is made from exact KV"):
            refused(session.id, "shadow:64:forced")


@pytest.mark.slow
def test_what_a_shadow_takes_and_loses_is_measured_first_and_exact_goes_back(window: Window) -> None:
    chat, host = window.chat, window.host
    session = chat.create("talk").session
    assert say(chat, "remember the sea " * 40).exact
    cost = host.format_cost(session.id, "shadow:64:forced")
    assert "of blocks stay as they are" in cost
    assert "of the last 4 tokens of answers" in cost
    host.use_format(session.id, "shadow:64:forced")
    assert not say(chat, "and now?").exact
    host.use_format(session.id, "exact")
    again = say(chat, "and then?")
    assert again.exact
    assert again.usage.cached_tokens > 64
    with pytest.raises(EngineFailed, match="gains nothing on this model"):
        host.format_cost(session.id, "shadow:64")


def test_an_engine_comes_back_where_no_process_can_be_started_to_convert(
    window: Window, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chat, host = window.chat, window.host
    session = chat.create("talk").session
    assert say(chat, "hello").exact
    with monkeypatch.context() as changed:
        changed.setattr("sys.executable", str(home / "nothing"))
        with pytest.raises(EngineFailed, match="no process can be started"):
            host.use_format(session.id, "int4")
    assert say(chat, "still here").exact


@pytest.mark.slow
def test_what_a_format_costs_and_a_refusal_change_nothing(window: Window) -> None:
    chat, host = window.chat, window.host
    session = chat.create("talk").session
    assert say(chat, "remember the sea " * 40).exact
    cost = host.format_cost(session.id, "int4")
    assert "% same, divergence" in cost or "No saving yet" in cost
    assert "nothing was changed" not in cost
    with pytest.raises(EngineFailed, match="nothing to convert"):
        host.use_format(session.id, "window")
    assert window.kvchat.store.find("talk").namespace == ""
    again = say(chat, "still here")
    assert again.exact
    assert again.usage.cached_tokens > 64


def test_a_window_lends_its_engine_again_after_it_has_begun_anew(window: Window, tiny_model: Path) -> None:
    settings, host = window.settings, window.host
    window.kvchat.lend_if_possible()
    first = borrowed_from(settings, tiny_model)
    assert first is not None
    host.reload()
    assert first.status().phase is EnginePhase.FAILED  # its branches went with the worker
    first.close()
    again = borrowed_from(settings, tiny_model)
    assert again is not None
    again.close()
    host.reload("starter")
    assert borrowed_from(settings, tiny_model) is None
    other = borrowed_from(settings, locate_model("starter").path)
    assert other is not None
    other.close()


def test_a_window_that_lends_nothing_lends_nothing_after_a_reload(tiny_model: Path) -> None:
    settings = read_settings()
    engine = EngineSwap()
    with opened(settings, engine) as kvchat:
        host = InterfaceHost(settings, kvchat, kvchat.load(None, str(tiny_model)), engine)
        engine.start()
        host.reload()
        assert borrowed_from(settings, tiny_model) is None


def borrowed_from(settings: Settings, model_dir: Path) -> EngineClientProxy | None:
    identity = identity_of(model_dir, settings.engine)
    return borrow(socket_path(settings.paths.runtime_dir, identity), identity)


def test_a_setting_is_written_into_the_persons_file_and_counts_there(home: Path) -> None:
    settings = read_settings()
    with opened(settings, EngineSwap()) as kvchat:
        host = InterfaceHost(settings, kvchat, None, EngineSwap())  # type: ignore[arg-type]
        assert "your next message" in host.change_setting("sampling.temperature", "0.7")
        assert host.change_setting("keys.help", "f9")
        assert read_settings().sampling.temperature == 0.7
        assert InterfaceHost(
            read_settings(),
            kvchat,
            None,
            EngineSwap(),  # type: ignore[arg-type]
        ).appearance().keys == {"help": "f9"}
        by_name = {entry.name: entry for entry in host.settings()}
        assert (by_name["sampling.temperature"].value, by_name["model"].origin) == ("0.7", "default")
        with pytest.raises(UsageError, match="did you mean"):
            host.change_setting("sampling.temperatur", "1")
        with pytest.raises(UsageError):
            host.change_setting("sampling.temperature", "hot")
        before = (home / "config.toml").read_text()
        (home / "config.toml").write_text("half [saved")
        with pytest.raises(ConfigError, match="not valid TOML"):
            host.change_setting("sampling.temperature", "0.5")
        assert (home / "config.toml").read_text() == "half [saved"
        (home / "config.toml").write_text(before)
        host.change_setting("sampling.temperature", "")
        assert read_settings().sampling.temperature == 0


def test_the_window_counts_what_its_engine_holds_as_free_for_another_model(
    window: Window, monkeypatch: pytest.MonkeyPatch
) -> None:
    free_bytes = 1 << 30
    monkeypatch.setattr("kvchat.app.interface_host.free_bytes_of", lambda device: free_bytes)
    say_first = window.chat.create("talk")
    list(window.chat.send(say_first, "hello"))
    # What an engine holds is told some times a second.
    wait_until(lambda: held_bytes(window) > 0)
    _, running = window.host._room()
    assert running is not None
    weights = sum(file.stat().st_size for file in running.glob("*.safetensors"))
    wait_until(lambda: window.host._room() == (free_bytes + held_bytes(window) + weights, running))


def held_bytes(window: Window) -> int:
    snapshot = window.chat.engine.snapshot()
    assert snapshot is not None
    device = snapshot.tier(Tier.DEVICE)
    return device.used_bytes + device.cached_bytes


def test_models_of_the_hub_of_the_directory_and_of_earlier_sessions_are_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiny_model: Path
) -> None:
    hub, here, used = tmp_path / "hub", tmp_path / "here", tmp_path / "used.gguf"
    monkeypatch.setenv("HF_HUB_CACHE", str(hub))
    cached = hub / "models--someone--some-GGUF" / "snapshots" / "1" / "q4.gguf"
    whole = hub / "models--someone--whole" / "snapshots" / "1"
    here.mkdir()
    monkeypatch.chdir(here)
    for file in (used, cached, here / "local.gguf"):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(bytes(3 << 20))
    shutil.copytree(tiny_model, whole)
    named = [str(used), str(tiny_model), str(tmp_path / "gone.gguf"), "someone/gone", ""]
    found = {entry.name: entry for entry in models_here("starter", named, 2 << 20)}
    assert list(found) == [
        "starter",
        str(here / "local.gguf"),
        str(cached),
        "someone/whole",
        *sorted((str(used), str(tiny_model))),
    ]
    assert [name for name, entry in found.items() if entry.is_current] == ["starter"]
    for file in (used, cached, here / "local.gguf"):
        assert "cannot be loaded: its weights alone take 3.0 MiB" in found[str(file)].summary
    assert found["someone/whole"].summary == found[str(tiny_model)].summary
    assert "does not fit: " in found["starter"].summary


def test_free_memory_is_known_while_another_thread_imports_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half imported it has some of its parts, and none of them can be relied on."""
    half = ModuleType("torch")
    monkeypatch.setitem(sys.modules, "torch", half)
    assert free_bytes_of("auto")
    assert free_bytes_of("cuda") is None
    half.cuda = ModuleType("torch.cuda")  # type: ignore[attr-defined]
    assert free_bytes_of("auto")


def test_a_model_fits_only_with_the_kv_of_a_conversation(tiny_model: Path) -> None:
    whole = describe("tiny", tiny_model, 1 << 40)
    assert whole.token_bytes is not None
    assert whole.needed_bytes is not None
    assert whole.needed_bytes > whole.num_bytes
    assert f"fits: {bytes_text(whole.needed_bytes)} with the KV of" in whole.line
    assert "does not fit" in describe("tiny", tiny_model, whole.needed_bytes - 1).line
    assert f"fits: {bytes_text(whole.needed_bytes)}" in whole.short_line
    assert "takes" in describe("tiny", tiny_model, None).short_line
