"""In which type a GPU's kernels are tried: that of the weights, before anything relies on them."""

from pathlib import Path

import pytest
import torch

from kvchat.engine import weights
from kvchat.engine.api.config import EngineConfig
from kvchat.engine.weight_format import Source
from tests.engine.conftest import TinyModels

pytestmark = pytest.mark.cpu


@pytest.mark.parametrize(
    ("dtype", "tried"), [("auto", "float32"), ("bfloat16", "bfloat16"), ("float16", "float16")]
)
def test_kernels_are_tried_in_the_type_that_the_weights_have(
    dtype: str, tried: str, tiny: TinyModels, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the trial's call is looked at: without a GPU there is none."""
    calls: list[tuple[torch.device, str]] = []
    monkeypatch.setattr(weights, "try_gpu", lambda device, name, _: calls.append((device, name)))
    cpu = torch.device("cpu")
    weights.load_candidate(Source(model_dir=Path(tiny("llama"))), EngineConfig(dtype=dtype), cpu)
    assert calls == [(cpu, tried)]
