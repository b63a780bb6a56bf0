"""Models with recurrent layers: exact behind forks, edits and restarts, and nothing is computed twice."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from kvchat.engine.api.ids import RequestId
from kvchat.engine.api.inspection import InspectionRequest
from kvchat.engine.api.request import Request
from kvchat.engine.api.sampling_params import SamplingParams
from kvchat.engine.formats.kv_size import read_shape
from kvchat.engine.formats.recurrent.spec import StateSpec
from kvchat.engine.forward.model_route import choose_route
from kvchat.engine.kernels import causal_conv
from kvchat.engine.kernels.health import HEALTH
from kvchat.engine.kernels.native.library import library
from kvchat.engine.models.config_file import normalised, read_config
from kvchat.engine.models.load import load_model
from kvchat.engine.scheduling.scheduler import NoDrafter
from kvchat.engine.sequences.completion_sequence import Completion
from tests.engine.conversations import Life, live
from tests.engine.recurrent_models import save_recurrent
from tests.engine.test_speculation import as_in_a_life
from tests.engine.tiny_models import (
    RecordingRunner,
    answer,
    finish,
    open_engine,
    open_recorded,
    reference,
    submit,
    token_ids,
)

pytestmark = pytest.mark.cpu

SOME = ("Qwen3_5", "Mamba2", "Jamba", "Lfm2")
"""Gated delta net, Mamba2 without attention, Mamba1 beside it, short convolutions."""
PLANNED = (
    *("Bamba", "FalconH1", "GraniteMoeHybrid", "Jamba", "KimiLinear", "Lfm2", "Lfm2Moe", "Lfm3", "MiniMax"),
    *("NemotronH", "OlmoHybrid", "Qwen3Next", "Qwen3_5", "Qwen3_5Moe", "RecurrentGemma", "Zamba2"),
)
"""Those whose configs say how large a state is, and how many tokens' keys and values lie beside it."""
OTHERS = sorted(
    {*PLANNED, *("BailingHybrid", "FalconMamba", "Inkling", "Inkling2", "Mamba", "Rwkv", "xLSTM", "Zaya")}
    - {*SOME, "Zamba2"}  # the latter is too large for the pools
)
every_class = pytest.mark.parametrize(
    "name", [*SOME, *(pytest.param(name, marks=pytest.mark.slow) for name in OTHERS)]
)
some_classes = pytest.mark.parametrize("name", SOME)
needs_kernels = pytest.mark.skipif(library() is None, reason="the native kernels are not built")
SIZES: dict[str, Any] = {"device_bytes": 3 << 20, "max_batch_tokens": 100}


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Any:
    known: dict[str, Path] = {}

    def find(name: str) -> Path:
        if name not in known:
            known[name] = save_recurrent(name, tmp_path_factory.mktemp(name))
        return known[name]

    return find


def state_of(recorder: RecordingRunner) -> StateSpec:
    spec = next(iter(recorder.device_pool.states.values())).spec
    assert isinstance(spec, StateSpec)
    return spec


def piece_of(recorder: RecordingRunner) -> int:
    """Return at which multiples of tokens states of a prompt are kept."""
    return state_of(recorder).piece


def kept_of(prompt: list[int], piece: int) -> int:
    """Return behind how many tokens of a prompt the state is kept from which it is answered again."""
    return (len(prompt) - 1) // piece * piece


@needs_kernels
@some_classes
def test_without_kernels_the_models_own_functions_compute_the_same(
    name: str, model_dir: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = []
    for has_kernels in (True, False):
        if not has_kernels:
            monkeypatch.setattr("kvchat.engine.models.native_scans._has_kernels", lambda weight: False)
        engine, recorder = open_recorded(model_dir(name), cache_dir=tmp_path, **SIZES)
        assert (state_of(recorder).piece == 1) == has_kernels
        first = answer(engine, token_ids(150, seed=1), 10)
        second = answer(engine, [*token_ids(150, seed=1), *first.token_ids, *token_ids(9, seed=2)], 10)
        told.append((first.token_ids, second.token_ids))
        if not has_kernels:
            assert first.usage.cached_tokens == 0, "their numbers are others to the last bits"
        engine.close()
    assert told[0] == told[1]
    assert HEALTH.problems == {}


@needs_kernels
@pytest.mark.parametrize("name", ["Qwen3_5", "Jamba"])
@pytest.mark.usefixtures("unseen")
def test_where_kernels_are_wrong_the_models_own_functions_compute(
    name: str, model_dir: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A library may give its functions another meaning: the logits of both are compared when it is loaded."""
    right = causal_conv.causal_conv
    monkeypatch.setattr(causal_conv, "causal_conv", lambda *args, **options: 1.1 * right(*args, **options))
    engine, recorder = open_recorded(model_dir(name), **SIZES)
    assert state_of(recorder).piece > 1
    text = token_ids(70, seed=1)
    assert answer(engine, text, 6).token_ids == reference(model_dir(name)).generate(text, 6)
    engine.close()


@needs_kernels
@pytest.mark.usefixtures("unseen")
@pytest.mark.parametrize("refused", [None, causal_conv.OPERATION])
def test_where_a_gpu_kernel_was_refused_the_models_own_functions_compute(
    refused: str | None, model_dir: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvchat.engine.models.native_scans.library", lambda: None)
    monkeypatch.setattr("kvchat.engine.models.native_scans.takes_triton", lambda _, name: name != refused)
    engine, recorder = open_recorded(model_dir("Mamba2"), **SIZES)
    assert (state_of(recorder).piece == 1) == (refused is None)
    engine.close()


@every_class
def test_a_conversation_is_exact_through_turns_retries_edits_and_a_restart(
    name: str, model_dir: Any, tmp_path: Path
) -> None:
    path = model_dir(name)
    wanted = reference(path).generate
    engine, recorder = open_recorded(path, cache_dir=tmp_path, **SIZES)
    piece = piece_of(recorder)
    first = token_ids(150, seed=1)
    asked = submit(engine, first, 10)
    said = finish(engine, asked).token_ids
    assert said == wanted(first, 10)

    second = [*first, *said, *token_ids(21, seed=2)]
    turn = finish(engine, submit(engine, second, 10, asked.sequence))
    assert turn.token_ids == wanted(second, 10)
    assert turn.usage.cached_tokens == len(first) + len(said) - 1, (
        "all but the last token, which was not read"
    )

    again = answer(engine, first, 10)
    assert again.token_ids == said
    assert again.usage.cached_tokens == kept_of(first, piece)

    edited = [*first, *said, *token_ids(9, seed=3)]
    other = answer(engine, edited, 10)
    assert other.token_ids == wanted(edited, 10)
    assert other.usage.cached_tokens == len(first) + len(said) - 1
    engine.close()

    engine = open_engine(path, cache_dir=tmp_path, **SIZES)
    third = [*second, *turn.token_ids, *token_ids(5, seed=4)]
    resumed = answer(engine, third, 10)
    assert resumed.token_ids == wanted(third, 10)
    assert resumed.usage.cached_tokens == len(second) + len(turn.token_ids) - 1
    engine.close()

    engine = open_engine(path, cache_dir=tmp_path, **SIZES)
    for prompt, found in ((second, turn.token_ids), (first, said)):
        retried = answer(engine, prompt, 10)
        assert retried.token_ids == found
        assert len(prompt) - retried.usage.cached_tokens <= piece, "no more than a piece is computed again"
    forked = [*first, *said, *token_ids(6, seed=15)]
    assert answer(engine, forked, 4).usage.cached_tokens >= len(first) + len(said) - 1
    engine.close()


def test_at_16_bits_a_layer_that_takes_states_of_its_own_dtype_alone_runs(model_dir: Any) -> None:
    engine = open_engine(model_dir("xLSTM"), dtype="bfloat16", **SIZES)
    assert len(answer(engine, token_ids(70, seed=1), 4).token_ids) == 4, "a whole chunk of its own"
    engine.close()


@pytest.mark.parametrize("name", ["Qwen3_5", "Mamba2"])
def test_chunks_and_neighbours_do_not_change_what_a_prompt_leads_to(name: str, model_dir: Any) -> None:
    """In one step by itself, in several, behind a snapshot, and beside others, it comes to the same but for
    the last bits of products of few rows.
    """
    path = model_dir(name)
    text = token_ids(170, seed=8)
    rows = []
    for most in (512, 70):
        engine, recorder = open_recorded(path, **SIZES | {"max_batch_tokens": most})
        beside = [submit(engine, token_ids(90, seed=9), 4)] if most == 70 else []
        asked = submit(engine, text, 1)
        finish(engine, asked)
        rows.append(recorder.row(asked.sequence, len(text) - 1))
        again = submit(engine, text, 1)
        assert finish(engine, again).usage.cached_tokens == kept_of(text, piece_of(recorder))
        rows.append(recorder.row(again.sequence, len(text) - 1))
        for handle in beside:
            finish(engine, handle)
        engine.close()
    for row in rows[1:]:
        torch.testing.assert_close(row, rows[0], rtol=1e-5, atol=1e-5)


@needs_kernels
def test_a_prompt_is_read_in_one_step_which_leaves_states_on_its_way(model_dir: Any) -> None:
    engine, recorder = open_recorded(model_dir("Qwen3_5"), **SIZES | {"max_batch_tokens": 512})
    text = token_ids(170, seed=8)
    request = Request(token_ids=tuple(text), sampling=SamplingParams(max_tokens=2), checkpoints=(70,))
    finish(engine, engine.submit(request))
    chunks = [chunk for batch in recorder.batches for chunk in batch.chunks]
    assert [(chunk.start, chunk.end, chunk.snapshots) for chunk in chunks] == [
        (0, 170, (70, 169)),
        (170, 171, ()),
    ]
    engine.close()


def test_where_a_prompt_leaves_a_text_that_others_share_a_state_is_kept(model_dir: Any) -> None:
    """The second to read it finds keys and values without a state, and leaves one for the third."""
    engine = open_engine(model_dir("Qwen3_5"), **SIZES)
    shared = token_ids(200, seed=10)
    found = [answer(engine, [*shared, *token_ids(70, seed=seed)], 4).loaded for seed in (11, 12, 13)]
    assert [one.total for one in found] == [0, 0, 192]
    assert [one.stateless for one in found] == [0, 192, 0]
    engine.close()


@needs_kernels
def test_a_state_is_kept_where_a_request_says_that_others_may_go_on(model_dir: Any) -> None:
    engine = open_engine(model_dir("Qwen3_5"), **SIZES)
    shared = token_ids(128, seed=10)
    for seed, checkpoints in ((11, (128,)), (12, ())):
        request = Request(
            token_ids=(*shared, *token_ids(70, seed=seed)),
            sampling=SamplingParams(max_tokens=4),
            checkpoints=checkpoints,
        )
        found = finish(engine, engine.submit(request))
        assert found.token_ids == reference(model_dir("Qwen3_5")).generate(list(request.token_ids), 4)
    assert found.usage.cached_tokens == 128
    engine.close()


@pytest.mark.usefixtures("loading_pays")
@pytest.mark.parametrize("name", ["Mamba2", "Qwen3_5"])
def test_what_is_loaded_counts_whole_and_a_state_that_nobody_saved_is_saved_with_its_first_user(
    name: str, model_dir: Any, tmp_path: Path
) -> None:
    text, places = tuple(token_ids(96, seed=18)), SIZES | {"cache_dir": tmp_path}
    engine = open_engine(model_dir(name), **places)
    one = SamplingParams(max_tokens=1)
    finish(engine, engine.submit(Request(token_ids=text, sampling=one, is_saved=False)))
    longer = (*text, *token_ids(40, seed=19))
    finish(engine, engine.submit(Request(token_ids=longer, sampling=one)))
    engine.close()
    engine = open_engine(model_dir(name), **places)
    other = (*text, *token_ids(8, seed=20))
    found = finish(engine, engine.submit(Request(token_ids=other, sampling=one)))
    assert found.usage.cached_tokens == found.loaded.disk == len(text)
    assert found.token_ids == reference(model_dir(name)).generate(list(other), 1)
    engine.close()


def test_the_states_along_a_path_are_listed_behind_their_blocks(model_dir: Any) -> None:
    engine = open_engine(model_dir("Qwen3_5"), **SIZES)
    text = token_ids(40, seed=16)
    asked = submit(engine, text, 10)
    said = finish(engine, asked).token_ids
    live = engine.inspect(InspectionRequest(sequence=asked.sequence, with_states=True))
    stored = engine.inspect(InspectionRequest(token_ids=(*text, *said), with_states=True))
    for blocks in (live, stored):
        states = [
            (block.start + len(block.token_ids), block.num_holders) for block in blocks if block.is_state
        ]
        assert states == [(39, 0), (49, 1)]
        kept = [[place.is_kept for place in block.places] for block in blocks]
        assert all(one[0] != one[1] for one in kept), "a state, or keys and values"
    plain = engine.inspect(InspectionRequest(sequence=asked.sequence))
    assert not any(block.is_state for block in plain)
    engine.release(asked.sequence)
    engine.step()
    kept = engine.inspect(InspectionRequest())
    assert {block.is_state for block in kept} == {True, False}
    assert all(any(place.tier for place in block.places) for block in kept), "none is nowhere"
    engine.close()


@needs_kernels
@pytest.mark.parametrize("num_turns", [30, pytest.param(100, marks=pytest.mark.slow)])
def test_a_disk_of_few_states_has_those_of_the_last_ten_turns(
    num_turns: int, model_dir: Any, tmp_path: Path
) -> None:
    """Resumed, forked at one of them, or asked again, a long conversation computes a message at most."""
    path = model_dir("Qwen3_5")
    engine, recorder = open_recorded(path, **SIZES)
    pool = recorder.device_pool
    state = sum(part.spec.layer_bytes(pool.block_size) for part in pool.states.values())
    tokens = sum(part.spec.layer_bytes(pool.block_size) for part in pool.layers.values())
    engine.close()
    places = {
        "cache_dir": tmp_path,
        "disk_bytes": int(1.3 * tokens * num_turns * 20 / pool.block_size) + 20 * state,
    }
    engine = open_engine(path, **SIZES | places)
    text: list[int] = []
    asked, said, sequence = [], [], None
    for number in range(num_turns):
        text += token_ids(12, seed=number)
        asked.append(list(text))
        handle = submit(engine, text, 8, sequence)
        sequence = handle.sequence
        text += finish(engine, handle).token_ids
        said.append(list(text))
    engine.close()

    engine = open_engine(path, **SIZES | places)
    for number in range(num_turns - 10, num_turns):
        fork = [*said[number], *token_ids(5, seed=1000 + number)]
        assert len(fork) - engine.reusable_len(fork) <= 12
    for prompt in asked[-3:]:
        assert len(prompt) - engine.reusable_len(prompt) <= 12
    engine.close()


def test_of_many_snapshots_those_are_kept_that_save_most_tokens(model_dir: Any) -> None:
    """A long conversation's states outlive those of short ones that came later."""
    engine, recorder = open_recorded(model_dir("Qwen3_5"), device_bytes=384 << 10, max_batch_tokens=100)
    num_states = len(next(iter(recorder.device_pool.states.values())).keys)
    long = token_ids(400, seed=14)
    answer(engine, long, 4)
    for seed in range(num_states):
        answer(engine, token_ids(10, seed=seed), 2)
    assert answer(engine, long, 4).usage.cached_tokens == kept_of(long, piece_of(recorder))
    engine.close()


@pytest.mark.slow
@pytest.mark.parametrize("name", [*SOME, *OTHERS])
@pytest.mark.parametrize("seed", range(100, 104))
def test_after_many_lives_each_answer_is_that_of_an_engine_without_a_past(
    name: str, seed: int, model_dir: Any, tmp_path: Path
) -> None:
    live(Life(model_dir(name), tmp_path, seed), num_actions=40)


class Wrong(NoDrafter):
    """Guesses a token that is never chosen."""

    def propose(
        self, due: Sequence[Completion], num_beside: int, most: int
    ) -> Mapping[RequestId, tuple[int, ...]]:
        return {one.id: (0,) for one in due if one.most_drafted}


def test_an_answer_whose_draft_was_wrong_goes_on_beside_a_more_important_prompt(model_dir: Any) -> None:
    settings = SIZES | {"max_batch_tokens": 32}
    engine, recorder = open_recorded(model_dir("Qwen3_5"), drafter=Wrong(), **settings)
    sampling = SamplingParams(max_tokens=60)
    behind = engine.submit(Request(token_ids=tuple(token_ids(9)), sampling=sampling, priority=1))
    while not any(batch.num_drafted for batch in recorder.batches):
        engine.step()
    submit(engine, token_ids(400, seed=3), 2)
    num_batches = len(recorder.batches)
    for _ in range(8):
        engine.step()
    beside = recorder.batches[num_batches:]
    assert all(any(chunk.request == behind.request_id for chunk in batch.chunks) for batch in beside)


@some_classes
def test_after_any_life_with_drafts_each_answer_is_that_of_an_engine_without_a_past(
    name: str, model_dir: Any, tmp_path: Path
) -> None:
    """Behind a draft that was partly right the state is given up, and what was right is computed again."""
    drafter = as_in_a_life(model_dir(name))
    live(Life(model_dir(name), tmp_path, seed=4, drafter=drafter), num_actions=10)


@pytest.mark.parametrize("name", PLANNED)
def test_the_size_of_a_state_follows_from_the_config(name: str, model_dir: Any) -> None:
    path = model_dir(name)
    config = normalised(read_config(str(path)))
    assert config is not None
    counted = read_shape(config).state_bytes
    loaded = load_model(path, dtype="float32", device=torch.device("cpu"))
    groups = [group for group in choose_route(loaded).groups if isinstance(group.spec, StateSpec)]
    kept = sum(len(group.layers) * one.num_bytes for group in groups for one in group.spec.tensors)
    assert counted == kept
