"""Colours, settings, models, and which keys can be changed."""

import asyncio
from pathlib import Path

import pytest
from textual.binding import Binding

from kvchat.app.config import KEY_NAMES
from kvchat.app.interface_types import Appearance
from kvchat.ui.app import KvchatApp
from kvchat.ui.screens.chat import ChatScreen
from kvchat.ui.screens.choices import LineScreen
from tests.ui.harness import window

pytestmark = pytest.mark.tui


def test_every_key_that_can_be_changed_is_one_of_the_windows() -> None:
    bound = [*ChatScreen.BINDINGS, *KvchatApp.BINDINGS]
    ids = {binding.id for binding in bound if isinstance(binding, Binding) and binding.id}
    assert set(KEY_NAMES) == ids


async def test_new_conversations_begin_with_the_system_prompt_that_is_set_then(tmp_path: Path) -> None:
    async with window(tmp_path, appearance=Appearance(system="Be brief.")) as shown:
        await shown.say_and_wait("hello")
        await shown.say("/set system Be kind.")
        await shown.until_shown("system = Be kind.")
        await shown.say("/new")
        await shown.until(lambda: shown.questions == [])
        await shown.say_and_wait("hello again")
        sessions = shown.chat.store.sessions.values()
        assert [session.system for session in sessions] == ["Be brief.", "Be kind."]


async def test_a_theme_is_kept_for_the_next_time_and_our_colours_are_there_without(tmp_path: Path) -> None:
    async with window(tmp_path, appearance=Appearance(theme="none")) as shown:
        await shown.until_shown("there is no theme 'none'")
        assert shown.app.theme == "kvchat"
        await shown.say("/theme nord")
        await shown.until(lambda: shown.app.theme == "nord")
        assert shown.files.values["display.theme"] == "nord"
        await shown.say("/set display.theme")
        await shown.until_on_top(LineScreen)
        await shown.pilot.press("ctrl+u", "enter")
        await shown.until(lambda: shown.app.theme == "kvchat")
        assert shown.files.values["display.theme"] == ""
        await shown.say("/theme auto")
        await shown.until(lambda: any("no theme 'auto'" in told for told in shown.told))
        assert (shown.app.theme, shown.files.values["display.theme"]) == ("kvchat", "")


async def test_commands_that_are_listed_while_one_types_fast_are_no_themes(tmp_path: Path) -> None:
    async with window(tmp_path) as shown:
        await shown.type("/theme nothing")
        await shown.until(lambda: shown.screen.prompt.text == "/theme nothing")
        assert shown.told == []


async def test_settings_are_listed_with_what_is_in_force_and_changed_at_once(tmp_path: Path) -> None:
    async with window(tmp_path) as shown:
        shown.files.in_force["engine.block_size"] = "64"
        await shown.say("/set")
        await shown.until_shown("32 (now 64)")
        assert "0.0 (now" not in shown.text
        assert "meaning of display.theme" in shown.text
        await shown.pilot.press("down", "enter")
        await shown.until_shown("empty resets it")
        await shown.pilot.press("0", "full_stop", "7", "enter")
        await shown.until_shown("settings · sampling.temperature = 0.7")
        assert shown.files.values["sampling.temperature"] == "0.7"
        await shown.until(lambda: shown.chat.sampling.temperature == 0.7)
        await shown.say("/set no.such")
        await shown.until_shown("there is no setting 'no.such'")
        shown.app.clear_notifications()
        await shown.say("/set no.such thing")
        await shown.until_shown("there is no setting 'no.such'")
        assert "no.such" not in shown.files.values


async def test_a_theme_is_seen_while_its_name_is_chosen_and_gone_where_it_is_not_taken(
    tmp_path: Path,
) -> None:
    async with window(tmp_path) as shown:
        await shown.say("/theme")
        await shown.until_shown("as set")
        assert (shown.app.theme, shown.told) == ("kvchat", [])
        await shown.pilot.press("down")
        await shown.until(lambda: shown.app.theme == sorted(set(shown.app.available_themes) - {"kvchat"})[0])
        await shown.type("nor")
        await shown.until(lambda: shown.app.theme == "nord")
        await shown.pilot.press("escape")
        await shown.until(lambda: shown.app.theme == "kvchat")
        await shown.pilot.press("backspace")
        await shown.until(lambda: shown.app.theme == "nord")
        seen = []
        shown.app.theme_changed_signal.subscribe(shown.app, lambda theme: seen.append(theme.name))
        await shown.pilot.press("enter")
        await shown.until(lambda: shown.files.values["display.theme"] == "nord")
        await shown.until_at_rest()
        assert (shown.app.theme, seen, shown.screen.prompt.text) == ("nord", [], "")


async def test_settings_are_offered_with_what_they_mean_and_take(tmp_path: Path) -> None:
    async with window(tmp_path) as shown:
        await shown.type("/set block")
        await shown.until_shown("▸ engine.block_size   32 · meaning of engine.block_size")
        await shown.pilot.press("enter")
        assert shown.screen.prompt.text == "/set engine.block_size "
        await shown.until_shown("engine.block_size 64")
        await shown.pilot.press("down", "enter")
        await shown.until(lambda: shown.files.values["engine.block_size"] == "64")
        await shown.type("/set temp")
        await shown.until_shown("▸ sampling.temperature   0.0 · meaning of sampling.temperature")


async def test_another_model_is_chosen_by_what_fits_and_not_where_there_is_none(tmp_path: Path) -> None:
    async with window(tmp_path) as shown:
        await shown.say_and_wait("hello")
        await shown.say("/model nowhere")
        await shown.until_shown("there is no model 'nowhere'")
        await shown.until_told("The running model goes on; its cache stays as it is.")
        assert shown.files.loaded == shown.chat.closed == []
        await shown.say("/model")
        await shown.until_shown("9 GiB · does not fit")
        await shown.pilot.press("down", "enter")
        await shown.until(lambda: shown.files.loaded == ["large"])
        await shown.say_and_wait("still here")
        assert shown.questions == ["hello", "still here"]


async def test_a_model_that_is_not_listed_is_named_in_a_line(tmp_path: Path) -> None:
    async with window(tmp_path) as shown:
        await shown.say("/model")
        await shown.until_shown("another: a Hugging Face id")
        await shown.pilot.press("up", "enter")
        await shown.until_on_top(LineScreen)
        await shown.type("small.gguf")
        await shown.pilot.press("enter")
        await shown.until(lambda: shown.files.loaded == ["small.gguf"])


async def test_a_download_shows_how_much_is_here_while_the_chat_goes_on(tmp_path: Path) -> None:
    async with window(tmp_path) as shown:
        await shown.say("/model big")
        await shown.until_shown("MiB of 1.0 GiB · /model stop")
        await shown.say_and_wait("meanwhile")
        assert shown.files.loaded == []
        shown.files.downloaded.set()
        await shown.until(lambda: shown.files.loaded == ["big"])
        await shown.until_gone("downloading big")


async def test_a_download_can_be_stopped_and_nothing_is_loaded(tmp_path: Path) -> None:
    async with window(tmp_path) as shown:
        await shown.say("/model big")
        await shown.until_shown("downloading big")
        await shown.say("/model stop")
        await shown.until_told("download stopped; /model big resumes it")
        await shown.until_gone("downloading big")
        await shown.say("/model stop")
        await shown.until_told("no model is being downloaded")
        assert shown.files.loaded == []


async def test_a_window_that_is_closed_ends_its_download(tmp_path: Path) -> None:
    async with window(tmp_path) as shown:
        await shown.say("/model big")
        await shown.until_shown("downloading big")
        files = shown.files
    await asyncio.get_running_loop().shutdown_default_executor()  # its thread has ended
    assert not files.downloaded.is_set()
    assert files.loaded == []
