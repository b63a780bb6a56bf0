"""Over a window a query sees the first block, its own, and those before that: exact blocks, fewer of them."""

from collections.abc import Callable

import pytest
import torch

from kvchat.engine.engine import Engine
from tests.engine.conftest import OpenEngine, OpenRecorded, TinyModels
from tests.engine.masked import Masked
from tests.engine.tiny_models import answer, finish, reference, submit, token_ids

pytestmark = pytest.mark.cpu

BLOCK = 16
NUM_RECENT = 2
FORMAT = f"window:{NUM_RECENT * BLOCK}"
Opened = Callable[..., Engine]


@pytest.fixture
def opened(tiny: TinyModels, open_engine: OpenEngine) -> Opened:
    return lambda **settings: open_engine(tiny("llama"), cache_format=FORMAT, **settings)


def sees(query: int, key: int) -> bool:
    return key < BLOCK or key // BLOCK >= query // BLOCK - NUM_RECENT


def test_a_window_is_dense_attention_with_a_mask(tiny: TinyModels, open_recorded: OpenRecorded) -> None:
    """Original positions: no key is turned again."""
    masked = Masked(tiny("llama"), sees)
    prompt = token_ids(150)
    engine, recorder = open_recorded(tiny("llama"), cache_format=FORMAT)
    handle = submit(engine, prompt, 12)
    found = finish(engine, handle).token_ids
    assert found == masked.answer(prompt, 12)
    wanted = masked.logits(prompt + found)
    for position in range(len(prompt) - 1, len(prompt) + 11):
        row = recorder.row(handle.sequence, position)
        assert torch.allclose(row, wanted[position], atol=2e-4), position


def test_a_window_that_holds_everything_is_bit_equal_to_the_exact_format(
    tiny: TinyModels, open_recorded: OpenRecorded
) -> None:
    prompt = token_ids(120)
    rows = []
    for cache_format in ("exact", "window:512"):
        engine, recorder = open_recorded(tiny("llama"), cache_format=cache_format)
        handle = submit(engine, prompt, 10)
        result = finish(engine, handle)
        rows.append([recorder.row(handle.sequence, position) for position in range(119, 128)])
        assert result.token_ids == reference(tiny("llama")).answer(prompt, 10)
    assert all(torch.equal(left, right) for left, right in zip(*rows, strict=True))


def test_without_its_first_block_a_window_answers_otherwise(tiny: TinyModels, opened: Opened) -> None:
    """The negative control: the oracle would notice a dropped sink."""
    prompt = token_ids(150)
    blind = Masked(tiny("llama"), lambda query, key: key // BLOCK >= query // BLOCK - NUM_RECENT)
    assert answer(opened(), prompt, 12).token_ids != blind.answer(prompt, 12)


def test_layers_with_a_window_of_their_own_keep_it(tiny: TinyModels, open_engine: OpenEngine) -> None:
    """Trap 20."""
    engine = open_engine(tiny("qwen3"), cache_format=FORMAT)
    assert {group.kind for group in engine.snapshot().groups} == {"sliding", "sinks and window"}
    engine.close()


def test_blocks_that_nobody_sees_any_more_are_let_go(opened: Opened) -> None:
    engine = opened()
    handle = submit(engine, token_ids(200), 4)
    finish(engine, handle)
    (group,) = engine.snapshot().groups
    assert group.used_blocks <= 1 + NUM_RECENT + 2
