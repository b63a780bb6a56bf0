"""Full layers whose older blocks are quantised: a format of its own, whose KV follows from the tokens alone.

What an answer must be is told by an engine of its own, which computes the whole prompt at once.
"""

from pathlib import Path
from random import Random

import pytest
import torch

from kvchat.engine.api.events import Loaded
from kvchat.engine.api.ids import GroupId
from tests.engine.block_life import (
    Opened,
    Wanted,
    check_a_fork_beside_its_parent,
    check_what_another_engine_finds,
    loaded_after_a_demotion,
)
from tests.engine.conftest import OpenEngine, OpenRecorded, TinyModels
from tests.engine.tiny_models import answer, finish, submit, token_ids

pytestmark = pytest.mark.cpu

FORMATS = ("int8", "k=fp8,v=int4; layers 1=exact")
# GPT-2's layers are computed one by one, those of Llama by the fused pass where there are native kernels.
CASES = (*(("llama", name) for name in FORMATS), ("gpt2", "int8"))
BLOCK = 16


@pytest.fixture(params=CASES, ids=" ".join)
def opened(request: pytest.FixtureRequest, tiny: TinyModels, open_engine: OpenEngine) -> Opened:
    kind, cache_format = request.param
    return lambda **settings: open_engine(tiny(kind), cache_format=cache_format, **settings)


@pytest.fixture
def wanted(opened: Opened) -> Wanted:
    return lambda prompt, num_tokens: answer(opened(), prompt, num_tokens).token_ids


# What a query sees follows from its position


@pytest.mark.parametrize(
    ("kind", "cache_format"),
    [
        *(("llama", name) for name in ("fp8", "int8", "int4", "int2")),
        ("qwen3", "k=int8,v=int4; layers 3=exact"),
        ("gpt2", "int8"),
    ],
)
def test_answers_do_not_depend_on_how_a_prompt_was_cut(
    kind: str, cache_format: str, tiny: TinyModels, open_engine: OpenEngine
) -> None:
    """Traps 20 and 32. Token by token, in chunks of several sizes, at once, and with a part reused."""
    prompt = token_ids(70)
    engines = {
        size: open_engine(tiny(kind), cache_format=cache_format, max_batch_tokens=size)
        for size in (1, 7, 33, 512)
    }
    answers = [answer(engine, prompt, 30).token_ids for engine in engines.values()]
    assert answers.count(answers[0]) == len(answers)
    again = answer(engines[512], prompt + answers[0][:12], 18)
    assert again.usage.cached_tokens > 60
    assert again.token_ids == answers[0][12:]


def test_a_step_with_prompts_and_answers_of_many_computes_each_as_if_alone(
    opened: Opened, wanted: Wanted
) -> None:
    random = Random(3)
    prompts = [token_ids(random.randint(1, 120), seed) for seed in range(4)]
    engine = opened(max_batch_tokens=40)
    handles = [submit(engine, prompt, 20) for prompt in prompts]
    found = [finish(engine, handle).token_ids for handle in handles]
    assert found == [wanted(prompt, 20) for prompt in prompts]


@pytest.mark.parametrize("size", [7, 33])
def test_quantized_bytes_hardly_depend_on_how_a_prompt_was_cut(
    size: int, tiny: TinyModels, open_recorded: OpenRecorded
) -> None:
    """Sums in another order may bring a number that lies between two codes to the other one, and no more."""

    def blocks(chunk_len: int) -> list[torch.Tensor]:
        engine, recorder = open_recorded(tiny("llama"), cache_format="int8", max_batch_tokens=chunk_len)
        handle = submit(engine, token_ids(120), 2)
        finish(engine, handle)
        changes = [change for batch in recorder.batches for change in batch.changes]
        table = [block for change in changes if change.group == 1 for block in change.block_ids]
        assert len(table) == 120 // BLOCK - 1
        return [
            torch.frombuffer(recorder.device_pool.read_block(GroupId(1), block, BLOCK), dtype=torch.uint8)
            for block in table
        ]

    pairs = list(zip(blocks(size), blocks(512), strict=True))
    differing = sum(int((left != right).sum()) for left, right in pairs)
    assert differing < 0.001 * sum(len(left) for left, _ in pairs)


def test_a_block_is_quantized_once_and_never_changes_again(
    tiny: TinyModels, open_recorded: OpenRecorded
) -> None:
    """What is read back is not quantised again with every step that fills a block."""
    engine, recorder = open_recorded(tiny("llama"), cache_format="int4")
    handle = submit(engine, token_ids(70), 3)
    finish(engine, handle)
    (table,) = (change.block_ids for change in recorder.batches[0].changes if change.group == 1)
    assert len(table) == 3

    def contents() -> list[bytes]:
        return [bytes(recorder.device_pool.read_block(GroupId(1), block, BLOCK)) for block in table]

    before = contents()
    finish(engine, submit(engine, token_ids(70) + token_ids(60, seed=2), 40))
    finish(engine, submit(engine, token_ids(70)[:55] + token_ids(60, seed=3), 40))
    assert contents() == before


# Blocks as all others


def test_sessions_share_the_blocks_of_a_common_beginning(opened: Opened, wanted: Wanted) -> None:
    engine, prompt = opened(), token_ids(90)
    first = submit(engine, prompt, 4)
    finish(engine, first)
    turn = prompt[:64] + token_ids(10, seed=1)
    second = submit(engine, turn, 8)
    result = finish(engine, second)
    assert (result.usage.cached_tokens, result.token_ids) == (64, wanted(turn, 8))
    quantized = engine.snapshot().groups[-1]
    assert (quantized.used_blocks, quantized.shared_blocks) == (4, 4)


def test_a_fork_goes_on_beside_its_parent(opened: Opened, wanted: Wanted) -> None:
    """Trap 11."""
    check_a_fork_beside_its_parent(opened(), wanted, 40)


def test_requests_that_make_way_for_others_end_with_the_same_answers(opened: Opened, wanted: Wanted) -> None:
    sizes = sum(group.block_bytes for group in opened().snapshot().groups)
    engine = opened(device_bytes=12 * sizes, max_batch_tokens=32)
    prompts = [token_ids(120, seed) for seed in range(2)]
    handles = [submit(engine, prompt, 40) for prompt in prompts]
    found = [finish(engine, handle).token_ids for handle in handles]
    assert found == [wanted(prompt, 40) for prompt in prompts]


def test_a_demoted_sequence_goes_on_from_host_memory(opened: Opened, wanted: Wanted) -> None:
    sizes = sum(group.block_bytes for group in opened().snapshot().groups)
    loaded, _ = loaded_after_a_demotion(opened(device_bytes=30 * sizes, host_bytes=200 * sizes), wanted)
    assert loaded.host > 0


def test_what_is_stored_on_disk_comes_back_in_another_engine(
    tmp_path: Path, opened: Opened, wanted: Wanted
) -> None:
    check_what_another_engine_finds(opened, wanted, tmp_path / "cache", 40)


def test_a_turn_that_was_left_behind_is_taken_up_again_from_disk(
    tmp_path: Path, opened: Opened, wanted: Wanted
) -> None:
    """What was exact where a turn ended stays stored after the conversation has gone on."""
    first, prompt = opened(cache_dir=tmp_path / "cache"), token_ids(75)
    text = prompt + answer(first, prompt, 10).token_ids
    answer(first, text + token_ids(100, seed=4), 10)
    first.close()
    turn = text + token_ids(5, seed=5)
    result = answer(opened(cache_dir=tmp_path / "cache"), turn, 20)
    assert (result.loaded, result.token_ids) == (Loaded(disk=len(text) - 1), wanted(turn, 20))


def test_without_its_exact_blocks_a_conversation_is_computed_again(
    tmp_path: Path, tiny: TinyModels, open_engine: OpenEngine
) -> None:
    settings = {"cache_format": "int8", "cache_dir": tmp_path / "cache"}
    first, prompt = open_engine(tiny("llama"), **settings), token_ids(100)
    wanted = answer(first, prompt, 20).token_ids
    first.close()
    (blocks,) = (tmp_path / "cache" / "blocks").glob("*/")
    for file in blocks.rglob("*.0.safetensors"):
        file.unlink()
    second = open_engine(tiny("llama"), **settings)
    result = answer(second, prompt, 20)
    assert (result.usage.cached_tokens, result.token_ids) == (0, wanted)


def test_no_format_finds_the_blocks_of_another(
    tmp_path: Path, tiny: TinyModels, open_engine: OpenEngine
) -> None:
    """Trap 5: another format is another name; another way to write it is not."""
    fingerprints: list[str] = []
    for cache_format in ("exact", *FORMATS, "int8; layers 0=exact"):
        engine = open_engine(tiny("llama"), cache_format=cache_format, cache_dir=tmp_path / "cache")
        assert answer(engine, token_ids(60), 4).usage.cached_tokens == 0
        assert engine.info.is_exact == (cache_format == "exact") == engine.snapshot().is_exact
        fingerprints.append(engine.info.fingerprint)
        engine.close()
    assert len(set(fingerprints)) == len(fingerprints)
    same = open_engine(
        tiny("llama"), cache_format="v=int8,k=int8;layers 0 = exact", cache_dir=tmp_path / "cache"
    )
    assert same.info.fingerprint == fingerprints[-1]
    assert same.info.cache_format == "int8; layers 0=exact"


# What it is for


@pytest.mark.parametrize(
    ("cache_format", "share"), [("fp8", 0.3), ("int8", 0.3), ("int4", 0.2), ("int2", 0.14)]
)
def test_a_conversation_takes_a_part_of_its_bytes(
    cache_format: str, share: float, tiny: TinyModels, open_engine: OpenEngine
) -> None:
    """Of float32 numbers; the last tokens are exact."""
    held = []
    for name in ("exact", cache_format):
        engine = open_engine(tiny("llama"), cache_format=name)
        submitted = submit(engine, token_ids(900), 1)
        finish(engine, submitted)
        snapshot = engine.snapshot()
        held.append(snapshot.sequences[0].own_bytes)
        assert held[-1] == sum(layer.used_bytes for layer in snapshot.layers)
        assert [layer.layer for layer in snapshot.layers] == [0, 1, 2, 3]
    assert held[1] < (share + 2 * BLOCK / 900) * held[0]


@pytest.mark.parametrize(
    ("cache_format", "least", "most"), [("fp8", 1e-3, 0.2), ("int8", 1e-4, 0.05), ("int4", 1e-2, 0.6)]
)
def test_logits_are_near_those_of_the_exact_format_and_not_the_same(
    cache_format: str, least: float, most: float, tiny: TinyModels, open_recorded: OpenRecorded
) -> None:
    rows = []
    for name in ("exact", cache_format):
        engine, recorder = open_recorded(tiny("llama"), cache_format=name, max_batch_tokens=20)
        handle = submit(engine, token_ids(150), 1)
        finish(engine, handle)
        rows.append(recorder.row(handle.sequence, 149).float())
    distance = float((rows[0] - rows[1]).norm() / rows[0].norm())
    assert least < distance < most
