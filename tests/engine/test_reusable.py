"""How much of a prompt need not be computed is known before it is asked, and asking changes nothing."""

from pathlib import Path

import pytest

from kvchat.engine.api.snapshot import Tier
from tests.engine.conftest import OpenEngine, TinyModels
from tests.engine.tiny_models import answer, token_ids

pytestmark = pytest.mark.cpu


def test_what_is_said_to_be_reusable_is_what_is_reused(
    tiny: TinyModels, open_engine: OpenEngine, tmp_path: Path
) -> None:
    model_dir = tiny("qwen3")
    engine = open_engine(model_dir, cache_dir=tmp_path)
    prompt = token_ids(100)
    assert engine.reusable_len(prompt) == 0
    text = prompt + answer(engine, prompt, 8).token_ids
    edited = text[:70] + token_ids(30, seed=5)
    before = engine.snapshot()  # the disk is left out: the writer is still at work
    assert engine.reusable_len(edited) == 70
    assert engine.reusable_len(edited, "bundle:7") == 0
    after = engine.snapshot()
    assert (after.tier(Tier.DEVICE), after.groups, after.layers, after.sequences) == (
        before.tier(Tier.DEVICE),
        before.groups,
        before.layers,
        before.sequences,
    )
    engine.check_integrity()
    engine.close()
    reopened = open_engine(model_dir, cache_dir=tmp_path)
    said = reopened.reusable_len(edited)
    assert answer(reopened, edited, 4).usage.cached_tokens == said == 70
