"""A gauge on a tiny model."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kvchat.engine.api.config import EngineConfig
from tests.engine.conftest import TinyModels

if TYPE_CHECKING:
    from kvchat.engine.quality.gauge import Gauge

BLOCK = 16
OpenGauge = Callable[..., "Gauge"]


@pytest.fixture
def gauge_of(tiny: TinyModels, tmp_path: Path) -> OpenGauge:
    from kvchat.engine.quality.gauge import Gauge
    from tests.engine.latent_models import model_of
    from tests.engine.recurrent_models import CONFIGS, save_recurrent

    def load(kind: str = "llama", chunk_len: int = 64) -> "Gauge":
        config = EngineConfig(device="cpu", block_size=BLOCK, max_batch_tokens=chunk_len)
        if kind in CONFIGS:
            return Gauge.load(save_recurrent(kind, tmp_path), config)
        return Gauge.load(model_of(kind, tmp_path) if kind == "V3" else tiny(kind), config)

    return load
