"""Models that load at once in threads of one process leave it as it was."""

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest
import torch

from kvchat.engine.models.load import load_model
from tests.engine.conftest import TinyModels

pytestmark = pytest.mark.cpu

NUM_ROUNDS = 8


def state_of_torch() -> dict[str, object]:
    """What transformers changes while it loads."""
    names = [name for name in vars(torch.nn.init) if name.endswith("_")]
    return {
        "default dtype": torch.get_default_dtype(),
        "linspace": torch.linspace,
        **{name: getattr(torch.nn.init, name) for name in names},
    }


def test_two_models_that_load_at_once_leave_torch_as_it_was(tiny: TinyModels) -> None:
    kinds = (tiny("gemma3"), "float32"), (tiny("qwen3"), "bfloat16")
    alone = [load_model(*kind, torch.device("cpu")).module for kind in kinds]
    before = state_of_torch()
    begin = Barrier(len(kinds))

    def load_often(number: int) -> torch.nn.Module:
        try:
            for _ in range(NUM_ROUNDS):
                begin.wait()
                module = load_model(*kinds[number], torch.device("cpu")).module
        except BaseException:
            begin.abort()  # the other one would wait for ever
            raise
        return module

    with ThreadPoolExecutor(len(kinds)) as pool:
        together = list(pool.map(load_often, range(len(kinds))))
    assert state_of_torch() == before
    text = torch.arange(40).view(1, -1)
    for one, other in zip(alone, together, strict=True):
        with torch.inference_mode():
            assert torch.equal(one(text).logits, other(text).logits)
