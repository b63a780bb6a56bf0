"""Over a window a query sees the first block, its own, and those before that: exact blocks, fewer of them."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from kvchat.engine.api.namespace import Namespace
from kvchat.engine.api.request import Request
from kvchat.engine.api.sampling_params import SamplingParams
from kvchat.engine.engine import Engine
from kvchat.engine.results import Result, collect
from tests.engine.conftest import OpenEngine, OpenRecorded, TinyModels
from tests.engine.masked import Masked
from tests.engine.tiny_models import answer, finish, reference, submit, token_ids

pytestmark = pytest.mark.cpu

BLOCK = 16
NUM_RECENT = 2
FORMAT = f"window:{NUM_RECENT * BLOCK}"
FIRST_TAINTED = (NUM_RECENT + 2) * BLOCK
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


def test_a_window_that_holds_everything_is_bit_equal_to_the_exact_format(
    tiny: TinyModels, open_recorded: OpenRecorded
) -> None:
    prompt = token_ids(120)
    rows = []
    for cache_format in ("exact", "window:512"):
        engine, recorder = open_recorded(tiny("llama"), cache_format=cache_format)
        handle = submit(engine, prompt, 10)
        result = finish(engine, handle)
        rows.append([recorder.row(handle.sequence, position) for position in range(119, 128)])
        assert result.token_ids == reference(tiny("llama")).answer(prompt, 10)
    assert all(torch.equal(left, right) for left, right in zip(*rows, strict=True))


def test_without_its_first_block_a_window_answers_otherwise(tiny: TinyModels, opened: Opened) -> None:
    """The negative control: the oracle would notice a dropped sink."""
    prompt = token_ids(150)
    blind = Masked(tiny("llama"), lambda query, key: key // BLOCK >= query // BLOCK - NUM_RECENT)
    assert answer(opened(), prompt, 12).token_ids != blind.answer(prompt, 12)


def test_layers_with_a_window_of_their_own_keep_it(tiny: TinyModels, open_engine: OpenEngine) -> None:
    """Trap 20."""
    engine = open_engine(tiny("qwen3"), cache_format=FORMAT)
    assert {group.kind for group in engine.snapshot().groups} == {"sliding", "sinks and window"}
    engine.close()


@pytest.mark.parametrize("kind", ["llama", "qwen3"])
def test_answers_do_not_depend_on_how_a_prompt_was_cut(
    kind: str, tiny: TinyModels, open_engine: OpenEngine
) -> None:
    prompt = token_ids(150)
    found = [
        answer(open_engine(tiny(kind), cache_format=FORMAT, max_batch_tokens=size), prompt, 20).token_ids
        for size in (1, 7, 33, 512)
    ]
    assert found.count(found[0]) == len(found)


def test_blocks_that_nobody_sees_any_more_are_let_go(opened: Opened) -> None:
    engine = opened()
    handle = submit(engine, token_ids(200), 4)
    finish(engine, handle)
    (group,) = engine.snapshot().groups
    assert group.used_blocks <= 1 + NUM_RECENT + 2


# Whose blocks they are


def ask(engine: Engine, ids: list[int], owner: str, num_tokens: int = 4) -> Result:
    sampling = SamplingParams(max_tokens=num_tokens)
    result = collect(engine.submit(Request(token_ids=tuple(ids), sampling=sampling, owner=owner)))
    engine.check_integrity()
    for sequence in result.sequences:
        engine.release(sequence)
    return result


def test_no_other_session_is_answered_from_what_was_computed_over_a_window(opened: Opened) -> None:
    """Trap 28: the exact beginning is everybody's, the rest the session's own, also while both run."""
    engine, prompt = opened(), token_ids(200)
    assert ask(engine, prompt, "a").usage.cached_tokens == 0
    assert ask(engine, prompt, "b").usage.cached_tokens == FIRST_TAINTED
    assert ask(engine, prompt, "").usage.cached_tokens == FIRST_TAINTED
    assert ask(engine, prompt, "").usage.cached_tokens == FIRST_TAINTED
    assert ask(engine, prompt, "a").usage.cached_tokens == 199
    namespaces = [str(Namespace(owner=owner)) for owner in ("a", "b", "c")] + [""]
    assert [engine.reusable_len(prompt, name) for name in namespaces] == [199, 199, 64, 64]


def test_a_session_is_taken_up_in_another_process(
    tiny: TinyModels, open_engine: OpenEngine, tmp_path: Path
) -> None:
    prompt = token_ids(200)
    settings = {"cache_format": FORMAT, "cache_dir": tmp_path}
    engine = open_engine(tiny("llama"), **settings)
    first = ask(engine, prompt, "a", 20)
    engine.close()
    engine = open_engine(tiny("llama"), **settings)
    turn = prompt + first.token_ids + token_ids(20, seed=5)
    result = ask(engine, turn, "a", 12)
    assert result.usage.cached_tokens == len(prompt) + 19
    assert result.token_ids == ask(open_engine(tiny("llama"), cache_format=FORMAT), turn, "x", 12).token_ids


def test_the_exact_format_finds_the_exact_blocks_and_no_others(
    tiny: TinyModels, open_engine: OpenEngine, tmp_path: Path
) -> None:
    """A window is undone by asking without it: nothing that it computed is taken for exact."""
    prompt = token_ids(200)
    for cache_format, cached in (("exact", 0), (FORMAT, FIRST_TAINTED), ("exact", 199)):
        engine = open_engine(tiny("llama"), cache_format=cache_format, cache_dir=tmp_path)
        result = ask(engine, prompt, "a", 12)
        assert result.usage.cached_tokens == cached
        if cache_format == "exact":
            assert result.token_ids == reference(tiny("llama")).answer(prompt, 12)
        engine.close()
    engine = open_engine(tiny("llama"), cache_format=FORMAT, cache_dir=tmp_path)
    assert ask(engine, prompt, "a", 1).usage.cached_tokens == 199


def test_a_fork_goes_on_beside_its_parent(opened: Opened) -> None:
    """Trap 11."""
    engine, prompt = opened(), token_ids(150)
    handle = submit(engine, prompt, 8)
    text = prompt + finish(engine, handle).token_ids
    child = engine.fork(handle.sequence)
    engine.check_integrity()
    ends = [text + token_ids(20, seed=seed) for seed in (1, 2)]
    handles = [
        submit(engine, end, 10, sequence)
        for end, sequence in zip(ends, (handle.sequence, child), strict=True)
    ]
    found = [finish(engine, handle).token_ids for handle in handles]
    assert found == [ask(opened(), end, "x", 10).token_ids for end in ends]


def test_under_pressure_and_from_host_memory_it_answers_the_same(
    tiny: TinyModels, open_engine: OpenEngine
) -> None:
    """Traps 11 and 23."""
    prompts = [token_ids(150 + 7 * seed, seed) for seed in range(4)]
    wanted = [ask(open_engine(tiny("llama"), cache_format=FORMAT), one, "x", 24).token_ids for one in prompts]
    exact = open_engine(tiny("llama"), cache_format=FORMAT)
    block_bytes = exact.snapshot().groups[0].block_bytes
    engine = open_engine(
        tiny("llama"), cache_format=FORMAT, device_bytes=18 * block_bytes, host_bytes=60 * block_bytes,
        max_batch_tokens=64, max_context=400,
    )  # fmt: skip
    handles = [submit(engine, prompt, 24) for prompt in prompts]
    assert [finish(engine, handle).token_ids for handle in handles] == wanted
    for handle, prompt, answered in zip(handles, prompts, wanted, strict=True):
        engine.demote(handle.sequence)
        engine.check_integrity()
        again = finish(engine, submit(engine, prompt + answered[:10], 14, handle.sequence))
        assert again.token_ids == answered[10:]
