"""Latents in 8-bit records: a format of its own, whose KV follows from the tokens alone."""

from pathlib import Path

import pytest

from kvchat.errors import ConfigError
from tests.engine.conftest import OpenEngine
from tests.engine.latent_models import model_of

pytestmark = pytest.mark.cpu

KIND = "V3, YaRN"
BLOCK_SIZE = 16
RECORD_BYTES = 16 + 4 + 2 * 8
"""Of rank 16 and 8 rope numbers: one tile."""


@pytest.fixture
def model_dir(tmp_path: Path) -> Path:
    return model_of(KIND, tmp_path)


def test_a_token_takes_one_record_per_layer(model_dir: Path, open_engine: OpenEngine) -> None:
    engine = open_engine(model_dir, cache_format="fp8")
    (group,) = engine.snapshot().groups
    assert (group.kind, group.block_bytes) == ("latent fp8", 3 * RECORD_BYTES * BLOCK_SIZE)
    exact = open_engine(model_dir)
    assert exact.snapshot().groups[0].block_bytes == 3 * (16 + 8) * 4 * BLOCK_SIZE
    assert (exact.info.is_exact, engine.info.is_exact) == (True, False)


@pytest.mark.parametrize("cache_format", ["int8", "int4", "int2", "k=fp8,v=int8"])
def test_other_codes_are_refused_with_the_reason(
    model_dir: Path, cache_format: str, open_engine: OpenEngine
) -> None:
    with pytest.raises(ConfigError, match=r"no form for layer 0 of this model \(latent\); .* fp8 or exact"):
        open_engine(model_dir, cache_format=cache_format)


def test_an_unknown_format_is_refused_by_name(model_dir: Path, open_engine: OpenEngine) -> None:
    with pytest.raises(ConfigError, match="'int3' is unknown; use exact, fp8, int8, int4, int2"):
        open_engine(model_dir, cache_format="int3")
