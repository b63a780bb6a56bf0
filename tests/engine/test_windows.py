"""Over a window a query sees the first block, its own, and those before that: exact blocks, fewer of them."""

from collections.abc import Callable

import pytest
import torch

from kvchat.engine.engine import Engine
from tests.engine.conftest import OpenEngine, OpenRecorded, TinyModels
from tests.engine.masked import MaskedHeads
from tests.engine.tiny_models import answer, finish, submit, token_ids

pytestmark = pytest.mark.cpu

BLOCK = 16
NUM_RECENT = 2
FORMAT = f"window:{NUM_RECENT * BLOCK}"
Opened = Callable[..., Engine]


@pytest.fixture
def opened(tiny: TinyModels, open_engine: OpenEngine) -> Opened:
    return lambda **settings: open_engine(tiny("llama"), cache_format=FORMAT, **settings)


class Windowed(MaskedHeads):
    """Dense attention over the last blocks, and over so many tokens at the beginning."""

    num_sinks = BLOCK

    def hidden(self, layer: int, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        keys = torch.arange(query.shape[1])
        is_old = keys // BLOCK < keys[:, None] // BLOCK - NUM_RECENT
        return self.behind(layer, *query.shape[:2]) | (is_old & (keys >= self.num_sinks))


class Blind(Windowed):
    num_sinks = 0


def test_a_window_is_dense_attention_with_a_mask(tiny: TinyModels, open_recorded: OpenRecorded) -> None:
    """Original positions: no key is turned again."""
    prompt = token_ids(150)
    engine, recorder = open_recorded(tiny("llama"), cache_format=FORMAT)
    handle = submit(engine, prompt, 12)
    found = finish(engine, handle).token_ids
    wanted = Windowed(tiny("llama")).masked_logits(prompt + found)
    for position in range(len(prompt) - 1, len(prompt) + 11):
        assert found[position + 1 - len(prompt)] == int(wanted[position].argmax())
        row = recorder.row(handle.sequence, position)
        assert torch.allclose(row, wanted[position], atol=2e-4), position


def test_without_its_first_block_a_window_answers_otherwise(tiny: TinyModels, opened: Opened) -> None:
    """The negative control: the oracle would notice a dropped sink."""
    prompt = token_ids(150)
    found = answer(opened(), prompt, 12).token_ids
    blind = Blind(tiny("llama")).masked_logits(prompt + found)
    assert found != blind[len(prompt) - 1 : -1].argmax(dim=1).tolist()


def test_blocks_that_nobody_sees_any_more_are_let_go(opened: Opened) -> None:
    engine = opened()
    handle = submit(engine, token_ids(200), 4)
    finish(engine, handle)
    (group,) = engine.snapshot().groups
    assert group.used_blocks <= 1 + NUM_RECENT + 2
