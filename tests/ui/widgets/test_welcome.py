"""An empty conversation: what a person reads in it first."""

import pytest

from kvchat.engine.api.engine_phase import EnginePhase
from kvchat.engine.models.locate import STARTER
from kvchat.ui.widgets.welcome import things_to_try, welcome_text

pytestmark = pytest.mark.pure

LAST = "f1 help"


def welcome(model: str | None, *, size: tuple[int, int], panel_key: str | None = "f3") -> list[str]:
    phase = EnginePhase.READY if model else EnginePhase.LOADING
    return welcome_text(phase, LAST, model=model, panel_key=panel_key, size=size).splitlines()


def test_a_new_person_sees_what_to_ask_what_the_panel_shows_and_how_to_load_a_real_model() -> None:
    wide = welcome(STARTER, size=(80, 30))
    assert wide[0] == "Ask anything, or type / for commands"
    assert [line.strip() for line in wide[2:5]] == list(things_to_try(STARTER))
    assert "cache by tier and layer (f3)" in wide[6]
    assert "/model loads a real one" in wide[7]
    without_panel = welcome(STARTER, size=(80, 30), panel_key=None)
    assert without_panel == [line for line in wide if "(f3)" not in line]
    other = welcome("Qwen/Qwen3-8B", size=(80, 30))
    assert not any("/model" in line for line in other)
    assert [line.strip() for line in other[2:5]] == list(things_to_try("Qwen/Qwen3-8B"))


@pytest.mark.parametrize("height", [1, 4, 6, 8, 11])
@pytest.mark.parametrize("width", [36, 57])
def test_a_small_window_shows_as_much_of_it_as_it_holds(width: int, height: int) -> None:
    lines = welcome(STARTER, size=(width, height), panel_key=None)
    assert lines[0] == "Ask anything, or type / for commands"
    assert len(lines) <= height
    assert max(map(len, lines)) <= width
    assert any("KV cache?" in line for line in lines) == (height >= 6)
    assert any("/model" in line for line in lines) == (height != 1 and height != 6)


def test_nothing_is_suggested_before_it_is_known_which_model_answers() -> None:
    assert welcome(None, size=(80, 30)) == ["The model is loading. You can type already.", "", LAST]
