"""Keys, colours, settings, models, and an engine that begins anew."""

from dataclasses import fields
from pathlib import Path

import pytest
from textual.binding import Binding

from kvchat.app.config import Keys
from kvchat.app.host import Appearance
from kvchat.engine.api.status import EnginePhase
from kvchat.ui.app import KvchatApp
from kvchat.ui.screens.chat import ChatScreen
from tests.ui.harness import window
from tests.ui.scripted import ScriptedChat
from tests.ui.scripted_engine import ScriptedEngine

pytestmark = pytest.mark.tui


def test_every_key_that_can_be_changed_is_one_of_the_windows() -> None:
    bound = [*ChatScreen.BINDINGS, *KvchatApp.BINDINGS]
    ids = {binding.id for binding in bound if isinstance(binding, Binding) and binding.id}
    assert {field.name for field in fields(Keys)} == ids


async def test_keys_of_the_persons_own_do_what_others_did(tmp_path: Path) -> None:
    appearance = Appearance(keys={"help": "f9", "new": "ctrl+b"})
    async with window(tmp_path, appearance=appearance) as shown:
        await shown.pilot.press("f1")
        await shown.pilot.press("f9")
        await shown.until_shown("// sends a line that begins with /")
        assert "f9 " in shown.text
        await shown.pilot.press("escape")
        await shown.say_and_wait("hello")
        await shown.pilot.press("ctrl+b")
        await shown.until(lambda: shown.questions == [])


async def test_every_new_conversation_begins_with_the_persons_system_prompt(tmp_path: Path) -> None:
    async with window(tmp_path, appearance=Appearance(system="Be brief.")) as shown:
        await shown.say_and_wait("hello")
        await shown.say("/new")
        await shown.until(lambda: shown.questions == [])
        await shown.say_and_wait("hello again")
        sessions = shown.chat.store.sessions.values()
        assert [session.system for session in sessions if session.title in ("hello", "hello again")] == [
            "Be brief."
        ] * 2


@pytest.mark.parametrize("theme", ["ansi-dark", "ansi-light", "nord", "solarized-light"])
async def test_other_colours_leave_the_window_as_it_is(tmp_path: Path, theme: str) -> None:
    async with window(tmp_path, appearance=Appearance(theme=theme)) as shown:
        await shown.say_and_wait("hello")
        assert shown.app.theme == theme
        await shown.until_shown("Very well.")
        await shown.until_shown("▒ shared")


async def test_a_theme_that_is_not_there_is_named_and_the_window_opens(tmp_path: Path) -> None:
    async with window(tmp_path, appearance=Appearance(theme="none")) as shown:
        await shown.until_shown("there is no theme 'none'")
        assert shown.app.theme == "kvchat"


async def test_a_theme_is_kept_for_the_next_time(tmp_path: Path) -> None:
    async with window(tmp_path) as shown:
        await shown.say("/theme nord")
        await shown.until(lambda: shown.app.theme == "nord")
        assert shown.files.values["display.theme"] == "nord"


async def test_a_theme_that_is_taken_out_gives_way_to_our_colours_at_once(tmp_path: Path) -> None:
    async with window(tmp_path, appearance=Appearance(theme="nord")) as shown:
        await shown.until(lambda: shown.app.theme == "nord")
        await shown.say("/set display.theme")
        await shown.until(lambda: shown.app.theme == "kvchat")
        assert shown.files.values["display.theme"] == ""


async def test_a_setting_is_changed_where_all_are_listed(tmp_path: Path) -> None:
    async with window(tmp_path) as shown:
        await shown.say("/set")
        await shown.until_shown("sampling.temperature")
        await shown.pilot.press("down", "enter")
        await shown.until_shown("empty takes it out")
        await shown.pilot.press("0", "full_stop", "7", "enter")
        await shown.until(lambda: shown.files.values["sampling.temperature"] == "0.7")
        await shown.until_shown("sampling.temperature = 0.7")
        assert shown.files.values["sampling.temperature"] == "0.7"


async def test_how_tokens_are_chosen_counts_from_the_next_message_on(tmp_path: Path) -> None:
    async with window(tmp_path) as shown:
        await shown.say("/set sampling.temperature 0.7")
        await shown.until(lambda: shown.chat.sampling.temperature == 0.7)
        assert shown.files.values["sampling.temperature"] == "0.7"


async def test_a_system_prompt_that_is_set_begins_the_next_conversation(tmp_path: Path) -> None:
    async with window(tmp_path) as shown:
        await shown.say_and_wait("hello")
        await shown.say("/set system Be brief.")
        await shown.until_shown("system = Be brief.")
        await shown.say("/new")
        await shown.until(lambda: shown.questions == [])
        await shown.say_and_wait("hello again")
        assert [session.system for session in shown.chat.store.sessions.values()] == ["", "Be brief."]


async def test_the_settings_say_which_value_is_in_force(tmp_path: Path) -> None:
    async with window(tmp_path) as shown:
        shown.files.in_force["engine.block_size"] = "64"
        await shown.say("/set")
        await shown.until_shown("32 (now 64)")
        assert "0.0 (now" not in shown.text


async def test_a_setting_that_is_not_there_is_refused(tmp_path: Path) -> None:
    async with window(tmp_path) as shown:
        await shown.say("/set no.such thing")
        await shown.until_shown("there is no setting 'no.such'")
        assert "no.such" not in shown.files.values


async def test_another_model_is_chosen_by_what_fits(tmp_path: Path) -> None:
    async with window(tmp_path) as shown:
        await shown.say_and_wait("hello")
        await shown.say("/model")
        await shown.until_shown("9 GiB · does not fit")
        await shown.pilot.press("down", "enter")
        await shown.until(lambda: shown.files.loaded == ["large"])
        assert shown.questions == ["hello"]


async def test_a_model_that_is_not_there_changes_nothing(tmp_path: Path) -> None:
    async with window(tmp_path) as shown:
        await shown.say_and_wait("hello")
        await shown.say("/model nowhere")
        await shown.until_shown("there is no model 'nowhere'")
        await shown.say_and_wait("still here")
        assert shown.questions == ["hello", "still here"]


async def test_an_engine_that_has_failed_is_loaded_again_and_answers(tmp_path: Path) -> None:
    def prepare(chat: ScriptedChat) -> None:
        chat.add_session("Oslo", [("By boat?", "Yes.")])

    engine = ScriptedEngine(phase=EnginePhase.FAILED)
    async with window(tmp_path, engine=engine, prepare=prepare, initial="Oslo") as shown:
        await shown.until_shown("/reload loads it again")
        await shown.say("/reload")
        await shown.until(lambda: shown.files.loaded == [None])
        engine.phase = EnginePhase.READY
        await shown.say_and_wait("Is it far?")
        assert shown.questions == ["By boat?", "Is it far?"]
