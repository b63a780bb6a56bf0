"""Drafts change no answer: whatever is guessed, tokens are those of one step each, and so is what is kept.

The drafters here know what will be chosen and are often wrong on purpose, so that drafts of every length are
right up to every place.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

import pytest

from kvchat.engine.api.config import EngineConfig
from kvchat.engine.api.events import FinishReason
from kvchat.engine.api.request import Request
from kvchat.engine.api.sampling_params import SamplingParams
from kvchat.engine.engine import Engine
from kvchat.engine.results import Result, collect
from kvchat.engine.sequences.completion_sequence import Completion
from kvchat.engine.startup.assembly import build_parts
from tests.engine.conftest import OpenEngine, OpenRecorded, TinyModels
from tests.engine.conversations import Asked, Life, cold, keep_rows, live
from tests.engine.conversations import collect as step_all
from tests.engine.drafters import Foreseen
from tests.engine.test_exactness import expect_answer
from tests.engine.test_traces_engine import KINDS as WINDOWED
from tests.engine.test_traces_engine import SAMPLINGS
from tests.engine.test_traces_sixteen_bits import judge
from tests.engine.tiny_models import finish, reference, submit, token_ids

pytestmark = pytest.mark.cpu

RATE = 0.85
LENGTHS = (5, 17, 63, 150)


def greedy(model_dir: Path, rate: float = RATE) -> Foreseen:
    """Return a drafter that knows transformers' greedy answers."""
    known: dict[tuple[int, ...], list[int]] = {}

    def answer_of(entry: Completion) -> Sequence[int]:
        prompt = entry.request.token_ids
        if prompt not in known:
            known[prompt] = reference(model_dir).answer(prompt, entry.max_tokens)
        return known[prompt]

    return Foreseen(answer_of, rate)


def as_in_a_life(model_dir: Path, dtype: str = "float32") -> Foreseen:
    """Return a drafter that knows what an engine without a past answers."""

    def answer_of(entry: Completion) -> Sequence[int]:
        return cold(model_dir, entry.request.token_ids, entry.request.sampling, dtype).tokens[entry.sample]

    return Foreseen(answer_of, RATE)


def expect_exact(
    model_dir: Path, open_recorded: OpenRecorded, prompts: list[list[int]], num_tokens: int
) -> None:
    """Answer prompts that arrive bit by bit, with drafts in small steps, and compare tokens and logits."""
    engine, recorder = open_recorded(model_dir, drafter=greedy(model_dir), max_batch_tokens=50)
    handles = []
    for prompt in prompts:
        handles.append(submit(engine, prompt, num_tokens))
        engine.step()
        engine.check_integrity()
    results = [finish(engine, handle) for handle in handles]
    for prompt, handle, result in zip(prompts, handles, results, strict=True):
        assert len(result.token_ids) == num_tokens
        expect_answer(model_dir, recorder, handle, prompt, result.token_ids)
    drafted = sum(result.usage.drafted_tokens for result in results)
    accepted = sum(result.usage.accepted_tokens for result in results)
    assert 0 < accepted < drafted == sum(batch.num_drafted for batch in recorder.batches)
    assert max(batch.num_tokens for batch in recorder.batches) <= 50


@pytest.mark.parametrize("kind", ["qwen3", "gpt2"])
def test_a_ragged_batch_with_drafts_is_exact(
    kind: str, tiny: TinyModels, open_recorded: OpenRecorded
) -> None:
    """Traps 14 and 34: also beside prompts, for models with and without a replaceable attention."""
    expect_exact(tiny(kind), open_recorded, [token_ids(length, seed=1) for length in LENGTHS], 30)


@pytest.mark.parametrize(("kind", "window"), [("qwen3", 7), ("gemma3", 23)])
def test_drafts_across_the_edge_of_a_window_are_exact(
    kind: str, window: int, tiny: TinyModels, open_recorded: OpenRecorded
) -> None:
    """Traps 14, 15 and 16: what leaves a window follows from the tokens that were chosen alone."""
    model_dir = tiny(kind, sliding_window=window)
    prompts = [token_ids(window - 2, seed=6), token_ids(window + 1, seed=6), token_ids(90, seed=6)]
    expect_exact(model_dir, open_recorded, prompts, 40)


@pytest.mark.slow
@pytest.mark.parametrize("kind", WINDOWED)
@pytest.mark.parametrize("seed", range(300, 315))
def test_after_many_lives_with_drafts_each_answer_is_that_of_an_engine_without_a_past(
    kind: str, seed: int, tiny: TinyModels, tmp_path: Path
) -> None:
    model_dir = tiny(kind, **WINDOWED[kind])
    live(Life(model_dir, tmp_path, seed, *SAMPLINGS, drafter=as_in_a_life(model_dir)), 40)


def test_sixteen_bit_answers_with_drafts_differ_only_where_two_tokens_are_equally_good(
    tiny: TinyModels, open_recorded: OpenRecorded
) -> None:
    """Trap 31: rows of a draft are rounded as those of any chunk are."""
    model_dir = tiny("llama")
    engine, recorder = open_recorded(model_dir, drafter=as_in_a_life(model_dir, "bfloat16"), dtype="bfloat16")
    sampling = SamplingParams(max_tokens=32)
    pairs = []
    for seed in (1, 2):
        prompt = tuple(token_ids(40, seed=400 + seed))
        asked = Asked(prompt, sampling, engine.submit(Request(token_ids=prompt, sampling=sampling)))
        step_all(engine, [asked])
        keep_rows(asked, recorder)
        pairs.append((asked, cold(model_dir, prompt, sampling, "bfloat16")))
        assert asked.handle.result is not None
        assert asked.handle.result.usage.accepted_tokens
    judge(pairs, "bfloat16")


# Where an answer ends


@pytest.fixture(scope="module")
def llama(tiny: TinyModels) -> Path:
    return tiny("llama")


def ask(engine: Engine, prompt: Sequence[int], **settings: object) -> Result:
    sampling = SamplingParams(**({"max_tokens": 24} | settings))  # type: ignore[arg-type]
    return collect(engine.submit(Request(token_ids=tuple(prompt), sampling=sampling)))


def test_an_answer_ends_inside_a_draft_as_it_does_without(llama: Path, open_recorded: OpenRecorded) -> None:
    """Trap 14: the token that ends it counts as not computed, though its slot was written."""
    prompt = token_ids(40)
    answer = reference(llama).answer(prompt, 24)
    num_accepted = 0
    for end in range(1, 12, 3):
        if answer[end] in answer[:end]:
            continue
        engine, _ = open_recorded(llama, drafter=greedy(llama, rate=1.0))
        result = ask(engine, prompt, stop_token_ids=(answer[end],))
        assert result.token_ids == answer[: end + 1]
        assert result.finish_reason is FinishReason.STOP
        num_accepted += result.usage.accepted_tokens
        (sequence,) = engine.snapshot().sequences
        assert sequence.num_tokens == len(prompt) + end
        again = ask(engine, [*prompt, *result.token_ids], max_tokens=4)
        assert again.usage.computed_tokens == 1
        assert again.token_ids == reference(llama).answer([*prompt, *result.token_ids], 4)
    assert num_accepted


@dataclass
class StopsAfter:
    """Ends an answer with its n-th token and remembers what it was fed."""

    num_tokens: int
    fed: list[int] = field(default_factory=list)

    def feed(self, token_id: int) -> bool:
        self.fed.append(token_id)
        return len(self.fed) == self.num_tokens


def test_a_stop_matcher_sees_each_token_once_and_none_behind_the_end(
    llama: Path, open_recorded: OpenRecorded
) -> None:
    prompt = token_ids(40)
    answer = reference(llama).answer(prompt, 24)
    engine, _ = open_recorded(llama, drafter=greedy(llama))
    for num_tokens in (1, 5, 11):
        stop = StopsAfter(num_tokens)
        request = Request(token_ids=tuple(prompt), sampling=SamplingParams(max_tokens=24), stop=stop)
        result = collect(engine.submit(request))
        assert result.token_ids == stop.fed == answer[:num_tokens]


def test_drafts_never_reach_behind_the_longest_answer_or_context(
    llama: Path, open_recorded: OpenRecorded
) -> None:
    engine, recorder = open_recorded(llama, drafter=greedy(llama, rate=1.0), max_context=60)
    result = ask(engine, token_ids(40), max_tokens=None)
    assert result.token_ids == reference(llama).answer(token_ids(40), 20)
    assert max(chunk.end for batch in recorder.batches for chunk in batch.chunks) < 60
    assert len(ask(engine, token_ids(40), max_tokens=2).token_ids) == 2


# What is chosen


@pytest.mark.parametrize(
    "settings",
    [
        {"temperature": 1.0, "seed": 3},
        {"temperature": 0.8, "seed": 4, "repetition_penalty": 1.3, "logprobs": 3},
        {"temperature": 0.9, "seed": 5, "n": 3},
        {"repetition_penalty": 1.5},
    ],
)
def test_sampled_answers_are_those_of_the_same_seed_without_drafts(
    settings: dict[str, float], llama: Path, open_engine: OpenEngine, open_recorded: OpenRecorded
) -> None:
    prompt = token_ids(33, seed=8)
    wanted = ask(open_engine(llama), prompt, **settings)
    drafter = Foreseen(lambda entry: wanted.samples[entry.sample].token_ids, RATE)
    engine, _ = open_recorded(llama, drafter=drafter)
    result = ask(engine, prompt, **settings)
    assert result.usage.accepted_tokens > 5
    assert [sample.token_ids for sample in result.samples] == [sample.token_ids for sample in wanted.samples]
    for ours, theirs in zip(result.logprobs, wanted.logprobs, strict=True):
        assert ours.logprob == pytest.approx(theirs.logprob, abs=1e-4)
        assert [token for token, _ in ours.top] == [token for token, _ in theirs.top]


def test_a_guess_that_is_always_wrong_costs_no_token_and_leaves_nothing_behind(
    llama: Path, open_recorded: OpenRecorded, tmp_path: Path
) -> None:
    """Trap 14: rejected tokens are neither named, nor saved, nor found by anybody."""
    prompt = token_ids(40)
    answer = reference(llama).answer(prompt, 40)
    wrong = [token % 500 + 1 for token in answer]
    engine, _ = open_recorded(llama, drafter=Foreseen(lambda _: wrong, 1.0), cache_dir=tmp_path)
    result = ask(engine, prompt, max_tokens=40)
    assert result.token_ids == answer
    assert (result.usage.accepted_tokens, result.usage.drafted_tokens > 40) == (0, True)
    guessed = [*prompt, *answer[:20], *wrong[20:]]
    assert engine.reusable_len(guessed) == 60
    engine.close()
    resumed, _ = open_recorded(llama, cache_dir=tmp_path)
    assert resumed.reusable_len([*guessed, 1]) == 60
    assert resumed.reusable_len([*prompt, *answer, 1]) == 79


# By itself


@pytest.fixture
def auto(llama: Path) -> Iterator[Engine]:
    """An engine as it is by default, all of whose steps take equally long."""
    parts = build_parts("tiny", llama, EngineConfig(device="cpu", block_size=16))
    ticks = count()
    engine = Engine(parts, clock=lambda: float(next(ticks)))
    yield engine
    engine.check_integrity()
    engine.close()


def test_an_engine_guesses_by_itself_where_text_repeats(auto: Engine, llama: Path) -> None:
    prompt = token_ids(40)
    results = [ask(auto, prompt, max_tokens=200), ask(auto, prompt, max_tokens=200)]
    assert results[0].token_ids == results[1].token_ids == reference(llama).answer(prompt, 200)
    assert results[1].usage.accepted_tokens > 0
    assert results[1].usage.accepted_tokens <= results[1].usage.drafted_tokens
