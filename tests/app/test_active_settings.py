"""From when a setting counts that is changed in a running window."""

from pathlib import Path

import pytest

from kvchat.app.active_settings import ActiveSettings
from kvchat.app.config import KEYS, default_settings, read_settings
from kvchat.app.interface_types import SettingEntry
from kvchat.errors import ConfigError

pytestmark = pytest.mark.pure


def entry(settings: ActiveSettings, name: str) -> SettingEntry:
    return next(one for one in settings.entries({}) if one.name == name)


def test_sampling_counts_from_the_next_message_on_and_leaves_what_else_the_run_was_given() -> None:
    changed = ActiveSettings(read_settings({"sampling.max_tokens": 4}))
    words = changed.change("sampling.temperature", "0.7")
    assert words.startswith("sampling.temperature = 0.7; takes effect with your next message")
    assert (changed.settings.sampling.temperature, changed.settings.sampling.max_tokens) == (0.7, 4)
    assert entry(changed, "sampling.temperature").in_force is None
    assert read_settings().sampling.temperature == 0.7
    changed.change("sampling.temperature", "")
    assert changed.settings.sampling.temperature == 0


def test_a_system_prompt_and_a_theme_count_from_now_on() -> None:
    changed = ActiveSettings(read_settings())
    assert "takes effect in new conversations" in changed.change("system", "Be brief.")
    assert changed.change("display.theme", "nord") == 'display.theme = "nord"'
    assert (changed.settings.system, changed.settings.display.theme) == ("Be brief.", "nord")


def test_what_the_engine_is_built_from_counts_from_the_next_engine_on() -> None:
    changed = ActiveSettings(read_settings())
    assert changed.engine_changes() == {}
    assert "takes effect after /reload" in changed.change("engine.block_size", "32")
    shown = entry(changed, "engine.block_size")
    assert (shown.value, shown.in_force) == ("32", "64")
    assert changed.engine_changes() == {"block_size": 32}
    changed.engine_changed(changed.engine_changes())
    assert changed.settings.engine.block_size == 32
    assert entry(changed, "engine.block_size").in_force is None
    assert changed.engine_changes() == {}


def test_keys_and_places_count_from_the_next_start_on() -> None:
    changed = ActiveSettings(read_settings())
    assert changed.change("keys.help", "f9").endswith("takes effect at the next start")
    shown = entry(changed, "keys.help")
    assert (shown.value, shown.in_force) == ("f9", "")


def test_what_the_environment_or_the_command_overrules_is_not_said_to_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("KVCHAT_TOP_K", "5")
    flags = {"sampling.temperature": 0.5}
    changed = ActiveSettings(read_settings(flags), flags)
    words = changed.change("sampling.top_k", "9"), changed.change("sampling.temperature", "0.7")
    assert [one.partition("; ")[2] for one in words] == [
        "KVCHAT_TOP_K overrides it here",
        "what the command was given overrides it here",
    ]
    assert (changed.settings.sampling.top_k, changed.settings.sampling.temperature) == (5, 0.5)
    shown = entry(changed, "sampling.temperature")
    assert (shown.value, shown.origin, shown.in_force) == ("0.5", "flag", None)


def test_what_the_engine_runs_with_is_in_force_whatever_is_set() -> None:
    entries = ActiveSettings(read_settings()).entries({"engine.cache_format": "int4", "model": "starter"})
    by_name = {one.name: one.in_force for one in entries}
    assert (by_name["engine.cache_format"], by_name["model"]) == ("int4", None)


def test_what_is_set_while_the_engine_begins_anew_awaits_the_next_one() -> None:
    changed = ActiveSettings(read_settings())
    changed.change("engine.block_size", "32")
    changed.change("engine.max_context", "512")
    taken = changed.engine_changes()
    changed.change("engine.threads", "2")
    changed.change("engine.max_context", "1024")
    changed.engine_changed(taken)
    assert changed.settings.engine.max_context == 512
    assert changed.engine_changes() == {"threads": 2, "max_context": 1024}


def test_a_key_that_the_environment_gives_to_something_else_is_refused_and_nothing_is_written(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KVCHAT_KEY_HELP", "f9")
    changed = ActiveSettings(read_settings())
    with pytest.raises(ConfigError, match="are both 'f9'"):
        changed.change("keys.find", "f9")
    assert not (home / "config.toml").exists()
    changed.change("keys.find", "f8")
    assert read_settings().keys == {"help": "f9", "find": "f8"}


def test_every_setting_says_what_it_means_and_a_few_which_values_they_take(tmp_path: Path) -> None:
    entries = {one.name: one for one in ActiveSettings(default_settings()).entries({})}
    assert list(entries) == list(KEYS)
    assert all(one.summary for one in entries.values())
    assert entries["engine.eviction"].choices == ("s3fifo", "lru")
