"""What a request uses counts as used on disk too, also where the device still has it; a scan does not."""

from pathlib import Path

import pytest

from kvchat.engine.api.ids import BlockKey
from kvchat.engine.engine import Engine
from kvchat.engine.memory.disk.cache_admin import CacheAdmin
from tests.engine.conftest import TinyModels
from tests.engine.tiny_models import answer, open_engine, token_ids

pytestmark = pytest.mark.cpu

PROMPT = token_ids(100)
FILE_BYTES = 18_000
"""A little more than one block's file of 16 tokens."""


def proven(cache_dir: Path) -> dict[BlockKey, bool]:
    """Return the full blocks on disk, and whether each was used after it was stored."""
    admin = CacheAdmin(cache_dir)
    found = {block.key: block.is_proven for block in admin.blocks() if not block.is_tail}
    admin.close()
    return found


def test_a_second_request_proves_what_it_finds_on_the_device_and_nothing_that_it_computes(
    tiny: TinyModels, tmp_path: Path
) -> None:
    engine = open_engine(tiny("llama"), cache_dir=tmp_path)
    text = PROMPT + answer(engine, PROMPT, 8).token_ids
    engine.drain_saves()
    first = proven(tmp_path)
    assert first
    assert not any(first.values())
    answer(engine, text + token_ids(60, seed=1), 8)
    engine.close()
    second = proven(tmp_path)
    assert len(second) > len(first)
    assert {key for key, is_proven in second.items() if is_proven} == set(first)


@pytest.mark.parametrize(("eviction", "least"), [("s3fifo", 96), ("lru", 0)])
def test_a_conversation_of_two_turns_is_still_on_disk_behind_a_long_document(
    eviction: str, least: int, tiny: TinyModels, tmp_path: Path
) -> None:
    """By age alone, the control, nothing of it is left."""

    def open_store() -> Engine:
        return open_engine(
            tiny("llama"), cache_dir=tmp_path, disk_bytes=24 * FILE_BYTES, eviction=eviction, host_bytes=0
        )

    engine = open_store()
    text = PROMPT + answer(engine, PROMPT, 8).token_ids
    engine.drain_saves()  # a person reads meanwhile
    answer(engine, text + token_ids(4, seed=1), 2)
    answer(engine, token_ids(700, seed=2), 1)
    engine.close()
    engine = open_store()
    result = answer(engine, text + token_ids(4, seed=3), 2)
    engine.close()
    assert (result.loaded.disk >= least) if least else result.loaded.disk == 0
