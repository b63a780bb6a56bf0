"""With encryption a conversation goes on from the disk as exactly as without."""

from pathlib import Path

import pytest

from kvchat.platform.encryptor import Encryptor
from tests.damage import flip
from tests.engine.conftest import OpenEngine, TinyModels
from tests.engine.tiny_models import answer, reference, token_ids

pytestmark = pytest.mark.cpu


def test_what_is_read_from_encrypted_blocks_gives_the_same_tokens_and_damage_costs_time_alone(
    tiny: TinyModels, open_engine: OpenEngine, tmp_path: Path
) -> None:
    """Neither another key nor none finds or disturbs them."""
    model_dir, prompt, key = tiny("llama"), token_ids(100), Encryptor(bytes(range(32)))

    def num_from_disk(encryptor: Encryptor | None) -> int:
        engine = open_engine(model_dir, cache_dir=tmp_path, encryptor=encryptor)
        result = answer(engine, prompt, 12)
        engine.close()
        assert result.token_ids == reference(model_dir).answer(prompt, 12)
        return result.loaded.disk

    assert [num_from_disk(one) for one in (key, Encryptor(bytes(32)), None)] == [0, 0, 0]
    assert num_from_disk(key) == 99
    for path in sorted(tmp_path.rglob("*.safetensors"))[::2]:
        flip(path)
    assert num_from_disk(key) < 99
