"""Full layers whose older blocks are quantised: a format of its own, whose KV follows from the tokens alone.

What an answer must be is told by an engine of its own, which computes the whole prompt at once.
"""

from collections.abc import Callable
from pathlib import Path

import pytest

from kvchat.engine.api.events import Loaded
from kvchat.engine.engine import Engine
from tests.engine.conftest import OpenEngine, TinyModels
from tests.engine.tiny_models import answer, token_ids

pytestmark = pytest.mark.cpu

FORMATS = ("int8", "k=fp8,v=int4; layers 1=exact")
# GPT-2's layers are computed one by one, those of Llama by the fused pass where there are native kernels.
CASES = (*(("llama", name) for name in FORMATS), ("gpt2", "int8"))
Opened = Callable[..., Engine]


@pytest.fixture(params=CASES, ids=" ".join)
def opened(request: pytest.FixtureRequest, tiny: TinyModels, open_engine: OpenEngine) -> Opened:
    kind, cache_format = request.param
    return lambda **settings: open_engine(tiny(kind), cache_format=cache_format, **settings)


def test_a_turn_that_was_left_behind_is_taken_up_again_from_disk(tmp_path: Path, opened: Opened) -> None:
    """What was exact where a turn ended stays stored after the conversation has gone on."""
    first, prompt = opened(cache_dir=tmp_path / "cache"), token_ids(75)
    text = prompt + answer(first, prompt, 10).token_ids
    answer(first, text + token_ids(100, seed=4), 10)
    first.close()
    turn = text + token_ids(5, seed=5)
    result = answer(opened(cache_dir=tmp_path / "cache"), turn, 20)
    wanted = answer(opened(), turn, 20).token_ids
    assert (result.loaded, result.token_ids) == (Loaded(disk=len(text) - 1), wanted)


def test_without_its_exact_blocks_a_conversation_is_computed_again(
    tmp_path: Path, tiny: TinyModels, open_engine: OpenEngine
) -> None:
    settings = {"cache_format": "int8", "cache_dir": tmp_path / "cache"}
    first, prompt = open_engine(tiny("llama"), **settings), token_ids(100)
    wanted = answer(first, prompt, 20).token_ids
    first.close()
    (blocks,) = (tmp_path / "cache" / "blocks").glob("*/")
    for file in blocks.rglob("*.0.safetensors"):
        file.unlink()
    second = open_engine(tiny("llama"), **settings)
    result = answer(second, prompt, 20)
    assert (result.usage.cached_tokens, result.token_ids) == (0, wanted)
