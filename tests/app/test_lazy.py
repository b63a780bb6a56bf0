"""A host that is made when it is first asked for something that a window does not need to be drawn."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from kvchat.app.composition import Kvchat, opened
from kvchat.app.config import read_settings
from kvchat.app.engine_swap import EngineSwap
from kvchat.app.interface_host import InterfaceHost
from kvchat.app.lazy import LazyHost

pytestmark = pytest.mark.cpu


class Parts:
    """What a host is made of, and those that were made."""

    def __init__(self, kvchat: Kvchat, tiny_model: Path) -> None:
        self.settings = read_settings({"display.theme": "nord", "keys.find": "ctrl+k", "system": "Be brief."})
        self._kvchat = kvchat
        self._engine = EngineSwap()
        self._chat = kvchat.load(None, str(tiny_model))
        self.made: list[InterfaceHost] = []

    def make(self) -> InterfaceHost:
        self.made.append(InterfaceHost(self.settings, self._kvchat, self._chat, self._engine))
        return self.made[-1]


@pytest.fixture
def parts(home: Path, tiny_model: Path) -> Iterator[Parts]:
    with opened(read_settings(), EngineSwap()) as kvchat:
        yield Parts(kvchat, tiny_model)


def test_how_the_window_looks_is_known_before_anything_is_made_and_follows_what_is_set(parts: Parts) -> None:
    host = LazyHost(parts.settings, parts.make)
    before = host.appearance()
    assert (before.theme, before.system, before.keys) == ("nord", "Be brief.", {"find": "ctrl+k"})
    assert not parts.made
    host.change_setting("display.theme", "gruvbox")
    assert host.appearance().theme == "gruvbox"
    assert host.sampling() == parts.settings.sampling
    assert len(parts.made) == 1
