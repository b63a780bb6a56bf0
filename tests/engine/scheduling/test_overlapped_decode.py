"""Steps that are handed in before the last one's tokens are known change no answer."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from kvchat.engine.api.request import Request
from kvchat.engine.api.sampling_params import SamplingParams
from kvchat.engine.engine import Engine
from kvchat.engine.sampling.sampler import Drawn, Sampler, SamplingRow
from kvchat.engine.sampling.speculative.ngram_proposer import NgramProposer
from tests.engine.conftest import TinyModels
from tests.engine.conversations import BEAMS, GREEDY, SEVERAL, Life, live
from tests.engine.overlapped_engines import AheadRunner, open_ahead
from tests.engine.test_traces_engine import KINDS as WINDOWED
from tests.engine.tiny_models import SAID, answer, reference, submit, token_ids

pytestmark = pytest.mark.cpu

LENGTHS = (5, 17, 30)
NUM_TOKENS = 40
SAMPLINGS = (*[GREEDY] * 7, BEAMS)


@pytest.fixture
def opened(engines: list[Engine]) -> Any:
    """Return a function that opens engines; what a test leaves open is closed."""

    def open_one(model_dir: Path, **settings: Any) -> tuple[Engine, AheadRunner]:
        engine, runner = open_ahead(model_dir, **settings)
        engines.append(engine)
        return engine, runner

    return open_one


def held(engine: Engine) -> list[tuple[int, list[int]]]:
    """Return the computed tokens and the blocks of each table, of all live sequences."""
    sequences = engine._manager.sequences.values()
    return [(sequence.computed_len, [len(table) for table in sequence.tables]) for sequence in sequences]


def step_all(engine: Engine) -> None:
    while engine.has_work:
        engine.step()
        engine.check_integrity()


@pytest.mark.parametrize("kind", ["gemma3", "gpt2"])
def test_answers_are_transformers_own(kind: str, tiny: TinyModels, opened: Any) -> None:
    """Nearly every step is handed in ahead, also while others end; nothing is computed in vain."""
    model_dir = tiny(kind)
    engine, runner = opened(model_dir)
    prompts = [token_ids(length, seed=1) for length in LENGTHS]
    handles = [submit(engine, prompt, NUM_TOKENS + 3 * number) for number, prompt in enumerate(prompts)]
    step_all(engine)
    for number, (prompt, handle) in enumerate(zip(prompts, handles, strict=True)):
        said = SAID[tuple(prompt)] = engine._manager.sequences[handle.sequence].token_ids[len(prompt) :]
        assert said == reference(model_dir).answer(prompt, NUM_TOKENS + 3 * number)
    assert engine._overlapped is not None
    assert len(runner.ahead) >= NUM_TOKENS


def test_an_answer_that_stops_costs_one_surplus_token_and_leaves_nothing_of_it(
    tiny: TinyModels, opened: Any
) -> None:
    """Also where the surplus token got the first slot of a new block: 16 + 16 tokens are computed then."""
    model_dir = tiny("llama")
    prompt = token_ids(16, seed=1)
    text = reference(model_dir).answer(prompt, NUM_TOKENS)
    for num_told in (3, 17, 18, 30):
        stop = text[num_told - 1]
        if stop in text[: num_told - 1]:
            continue
        sampling = SamplingParams(max_tokens=NUM_TOKENS, stop_token_ids=(stop,))
        found = []
        for is_ahead in (True, False):
            engine, _ = opened(model_dir, is_ahead=is_ahead)
            handle = engine.submit(Request(token_ids=tuple(prompt), sampling=sampling))
            step_all(engine)
            engine.step()
            following = [*prompt, *text[:num_told], *token_ids(4, seed=2)]
            found.append((held(engine), answer(engine, following, 12, handle.sequence).token_ids))
        assert found[0] == found[1]
        assert found[0][0] == [(16 + num_told - 1, [-(-(16 + num_told - 1) // 16)])]


@pytest.mark.parametrize("is_cancelled", [False, True], ids=["stopped", "cancelled"])
def test_another_token_in_the_place_of_the_one_that_was_under_way_is_computed(
    is_cancelled: bool, tiny: TinyModels, opened: Any
) -> None:
    """The next request goes on with one token, at the same place of the same sequence, in the same block."""
    model_dir = tiny("llama")
    prompt = token_ids(18, seed=1)
    text = reference(model_dir).answer(prompt, NUM_TOKENS)
    assert text[4] not in text[:4]
    stops = () if is_cancelled else (text[4],)
    engine, runner = opened(model_dir)
    sampling = SamplingParams(max_tokens=NUM_TOKENS, stop_token_ids=stops)
    handle = engine.submit(Request(token_ids=tuple(prompt), sampling=sampling))
    while engine.has_work:
        engine.step()
        if is_cancelled and len(runner.ahead) == 4:
            handle.cancel()
    computed_len = held(engine)[0][0]
    assert computed_len % 16
    whole = [*prompt, *text]
    other = next(token for token in token_ids(9, seed=3) if token != whole[computed_len])
    following = [*whole[:computed_len], other]
    result = answer(engine, following, 12, handle.sequence)
    assert (result.usage.computed_tokens, result.usage.cached_tokens) == (1, computed_len)
    assert result.token_ids == reference(model_dir).answer(following, 12)


def test_a_cancelled_answer_leaves_nothing_of_the_token_that_was_under_way(
    tiny: TinyModels, opened: Any
) -> None:
    engine, runner = opened(tiny("llama"))
    handle = submit(engine, token_ids(16, seed=1), NUM_TOKENS)
    while not runner.ahead or (runner.ahead[-1].chunks[0].start % 16):
        engine.step()  # until a token is under way whose slot begins a block
    handle.cancel()
    engine.step()
    computed_len, tables = held(engine)[0]
    assert tables == [computed_len // 16]
    assert engine._overlapped is not None
    assert engine._overlapped._launched is None or not engine.has_work


def test_tokens_are_read_after_the_next_step_has_been_handed_in(tiny: TinyModels, opened: Any) -> None:
    engine, runner = opened(tiny("llama"))
    order: list[str] = []

    class Watched(Drawn):
        def tokens_here(self) -> list[int | None]:
            order.append(f"read behind {len(runner.ahead)}")
            return super().tokens_here()

    class Watching(Sampler):
        def begin(self, logits: Tensor, rows: Sequence[SamplingRow]) -> Drawn:
            drawn = super().begin(logits, rows)
            return Watched(drawn.tokens, logits)

    engine._output.sampler = Watching(0, draws_there=True)
    submit(engine, token_ids(5), 6)
    step_all(engine)
    assert order == [f"read behind {number}" for number in (1, 2, 3, 4, 5, 5)]
    assert [len(batch.chunks[0].token_ids) for batch in runner.batches] == [5], "one pass waited for tokens"


@pytest.mark.parametrize(
    "kind", ["qwen3", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("llama", "gemma3"))]
)
@pytest.mark.parametrize(
    ("seed", "num_actions", "least_ahead"),
    [(5, 16, 20), *(pytest.param(seed, 40, 0, marks=pytest.mark.slow) for seed in range(400, 420))],
)
def test_after_any_life_with_steps_ahead_each_answer_is_that_of_an_engine_without_a_past(
    kind: str, seed: int, num_actions: int, least_ahead: int, tiny: TinyModels, tmp_path: Path
) -> None:
    """Traps 11, 14 and 28: with forks, cancelled answers, searches, pressure and a restart."""
    life = AheadLife(tiny(kind, **WINDOWED[kind]), tmp_path, seed, *SAMPLINGS)
    live(life, num_actions)
    assert life.num_ahead >= least_ahead


class AheadLife(Life):
    """A life whose engines hand steps in ahead."""

    num_ahead = 0

    def _opened(self, **settings: object) -> tuple[Engine, AheadRunner]:
        return open_ahead(self.model_dir, **settings)

    def _close(self) -> None:
        self.num_ahead += len(self.recorder.ahead)  # type: ignore[attr-defined]
        super()._close()


def test_drawn_texts_are_the_same_with_and_without(tiny: TinyModels, opened: Any) -> None:
    """What is computed in vain draws no number, and answers of one request draw each their own."""
    sampling = [
        SamplingParams(max_tokens=20, temperature=0.9, seed=3, stop_token_ids=tuple(range(100))),
        replace(SEVERAL, max_tokens=20),
        SamplingParams(max_tokens=9),
    ]
    found = []
    for is_ahead in (True, False):
        engine, runner = opened(tiny("qwen3"), is_ahead=is_ahead)
        handles = [
            engine.submit(Request(token_ids=tuple(token_ids(length)), sampling=each))
            for length, each in zip(LENGTHS, sampling, strict=True)
        ]
        step_all(engine)
        ends = [end.sequence for handle in handles for end in handle.result.samples]
        found.append([engine._manager.sequences[sequence].token_ids for sequence in ends])
        assert bool(runner.ahead) is is_ahead
    assert found[0] == found[1]


def test_an_answer_that_repeats_itself_is_guessed_instead(tiny: TinyModels, opened: Any) -> None:
    """A guess brings several tokens at once, but must know the last one."""
    engine, runner = opened(tiny("llama"), drafter=NgramProposer())
    submit(engine, token_ids(12) * 3, 8)
    engine.step()
    assert not runner.ahead
    step_all(engine)
    submit(engine, token_ids(30, seed=4), 8)
    engine.step()
    assert runner.ahead


def test_numbers_that_are_none_end_the_answer(tiny: TinyModels, opened: Any) -> None:
    engine, runner = opened(tiny("llama"))
    handle = submit(engine, token_ids(5), NUM_TOKENS)
    for _ in range(4):
        engine.step()
    for layer in runner.device_pool.layers.values():
        layer.keys.fill_(torch.nan)
    step_all(engine)
    assert handle.result is not None
    assert "not a number" in (handle.result.error or "")
