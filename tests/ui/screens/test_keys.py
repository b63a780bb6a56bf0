"""Keys of the person's own, keys that work everywhere, and what the screen says of them."""

from pathlib import Path
from threading import Event

import pytest

from kvchat.app.interface_types import Appearance
from kvchat.engine.api.engine_phase import EnginePhase
from tests.ui.harness import talk, talk_window, window
from tests.ui.scripted import Answer
from tests.ui.scripted_engine import ScriptedEngine

pytestmark = pytest.mark.tui

OWN_KEYS = {
    "help": "ctrl+k",
    "new": "ctrl+e",
    "send": "f12",
    "newline": "enter",
    "go_on": "f11",
    "find": "f10",
}


async def test_own_keys_come_before_those_of_the_text_and_stand_in_what_is_said(tmp_path: Path) -> None:
    hold = Event()
    answer = Answer(text="word " * 40, hold=hold)
    async with window(tmp_path, answer, appearance=Appearance(keys=OWN_KEYS)) as shown:
        await shown.until_shown("ctrl+k help")
        assert "find · f10" in shown.text
        await shown.type("one")
        await shown.pilot.press("enter", "x", "home", "f1")
        assert shown.app.screen is shown.screen
        await shown.pilot.press("ctrl+k")
        await shown.until_shown("/set changes them")
        assert "f12 " in shown.text
        await shown.pilot.press("escape")
        assert shown.screen.prompt.text == "one\nx"
        await shown.pilot.press("f12")
        await shown.until_shown("word")
        await shown.pilot.press("escape")
        hold.set()
        await shown.until_shown("interrupted · f11 or /continue goes on")
        await shown.pilot.press("ctrl+e")
        await shown.until(lambda: shown.questions == [])
        assert shown.chat.sent == ["one\nx"]


async def test_the_interface_is_suspended_from_everywhere(tmp_path: Path) -> None:
    suspended: list[str] = []
    async with talk_window(tmp_path) as shown:
        for key in ("f2", "ctrl+f", "f6", "f1"):
            shown.app.action_suspend_process = lambda key=key: suspended.append(key)  # type: ignore[method-assign]
            await shown.pilot.press(key, "ctrl+z")
        assert suspended == ["f2", "ctrl+f", "f6", "f1"]


async def test_a_changed_message_stays_to_be_seen_until_its_cost_is_known(tmp_path: Path) -> None:
    async with talk_window(tmp_path) as shown:
        shown.chat.hold_costs = Event()
        await shown.say("/edit")
        await shown.say("!")
        await shown.until_shown("changed How long?!")
        shown.chat.hold_costs.set()
        await shown.until_gone("changed How long?!")
        await shown.until_sent("How long?!")


async def test_the_way_out_of_a_failed_engine_stays_on_the_screen_until_it_is_gone(tmp_path: Path) -> None:
    engine = ScriptedEngine(phase=EnginePhase.FAILED)
    async with window(tmp_path, engine=engine, prepare=talk, initial="Oslo", size=(60, 110)) as shown:
        await shown.until_shown("the model file is damaged")
        assert shown.text.splitlines()[-1].rstrip().endswith("/reload loads it again")
        await shown.say("hello?")
        await shown.until_told("waits until /reload")
        await shown.until_shown("queued  hello?")
        assert shown.text.splitlines()[-1].rstrip().endswith("/reload loads it again")
        await shown.pilot.press("f1", "end")
        await shown.until_shown("≈  ")
        await shown.until_shown("▸2 ")
        await shown.pilot.press("escape")
        await shown.say("/reload")
        await shown.until(lambda: shown.files.loaded == [None])
        engine.phase = EnginePhase.READY
        await shown.until_sent("hello?")
        assert shown.questions == ["By boat?", "How long?", "hello?"]
