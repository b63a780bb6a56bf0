"""Over a window a query sees the first block, its own, and those before that: exact blocks, fewer of them."""

from collections.abc import Callable

import pytest
import torch

from kvchat.engine.engine import Engine
from tests.engine.conftest import OpenEngine, OpenRecorded, TinyModels
from tests.engine.masked import Masked
from tests.engine.tiny_models import answer, finish, submit, token_ids

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


def test_without_its_first_block_a_window_answers_otherwise(tiny: TinyModels, opened: Opened) -> None:
    """The negative control: the oracle would notice a dropped sink."""
    prompt = token_ids(150)
    blind = Masked(tiny("llama"), lambda query, key: key // BLOCK >= query // BLOCK - NUM_RECENT)
    assert answer(opened(), prompt, 12).token_ids != blind.answer(prompt, 12)


def test_blocks_that_nobody_sees_any_more_are_let_go(opened: Opened) -> None:
    engine = opened()
    handle = submit(engine, token_ids(200), 4)
    finish(engine, handle)
    (group,) = engine.snapshot().groups
    assert group.used_blocks <= 1 + NUM_RECENT + 2
