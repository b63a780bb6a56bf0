"""An engine whose linear layers are packed answers as one that was loaded with the same weights."""

from pathlib import Path

import pytest

from kvchat.engine.models.linear import packed
from tests.engine.conftest import OpenEngine, TinyModels
from tests.engine.test_update_weights import other_of
from tests.engine.tiny_models import answer, reference, token_ids

pytestmark = pytest.mark.cpu

PROMPT = token_ids(60)


@pytest.mark.parametrize("is_emulated", [False, True])
def test_packed_weights_are_exchanged_like_plain_ones(
    is_emulated: bool,
    tiny: TinyModels,
    open_engine: OpenEngine,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """At 16 bits layers of every size are packed, or paired where the processor emulates their type."""
    monkeypatch.setattr(packed, "is_emulated", lambda _: is_emulated)
    second = other_of(tiny("llama"), tmp_path / "second")
    engine, fresh = (open_engine(where, dtype="bfloat16") for where in (tiny("llama"), second))
    before = answer(engine, PROMPT).token_ids
    engine.update_weights(second)
    assert answer(engine, PROMPT).token_ids == answer(fresh, PROMPT).token_ids != before


def test_wide_layers_in_float32_give_the_answers_of_the_model_itself(
    tiny: TinyModels, open_engine: OpenEngine
) -> None:
    wide = tiny("llama", hidden_size=512, intermediate_size=640)
    assert answer(open_engine(wide), PROMPT).token_ids == reference(wide).answer(PROMPT, 24)
