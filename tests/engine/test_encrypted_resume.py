"""With encryption a conversation goes on from the disk as exactly as without."""

from contextlib import closing
from pathlib import Path

import pytest

from kvchat.engine import Engine, EngineConfig, SamplingParams
from kvchat.platform.encryptor import Encryptor
from tests.damage import flip

pytestmark = pytest.mark.cpu

ENCRYPTOR = Encryptor(bytes(range(32)))
PROMPT = [7 + number * number % 900 for number in range(300)]
GREEDY = SamplingParams(max_tokens=12, temperature=0.0)


def answer(cache_dir: Path | None, encryptor: Encryptor | None = ENCRYPTOR) -> tuple[tuple[int, ...], int]:
    """Return the starter's answer in an engine of its own, and how many tokens came from the disk."""
    with closing(Engine.load("starter", EngineConfig(cache_dir=cache_dir, encryptor=encryptor))) as engine:
        (result,) = engine.generate([PROMPT], GREEDY)
        return tuple(result.token_ids), result.loaded.disk


def test_what_is_read_from_encrypted_blocks_gives_the_same_tokens(tmp_path: Path) -> None:
    expected, _ = answer(None)
    assert answer(tmp_path) == (expected, 0)
    tokens, num_from_disk = answer(tmp_path)
    assert tokens == expected
    assert num_from_disk >= 256
    # Neither another key nor none finds or disturbs them.
    assert answer(tmp_path, Encryptor(bytes(32))) == (expected, 0)
    assert answer(tmp_path, None) == (expected, 0)
    assert answer(tmp_path)[1] >= 256


def test_a_damaged_encrypted_block_costs_time_alone(tmp_path: Path) -> None:
    expected, _ = answer(tmp_path)
    for path in sorted(tmp_path.rglob("*.safetensors"))[::2]:
        flip(path)
    tokens, num_from_disk = answer(tmp_path)
    assert tokens == expected
    assert num_from_disk < 256
