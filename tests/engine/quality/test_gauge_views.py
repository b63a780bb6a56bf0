"""The gauge over views, on models that not every format can store, and where nothing can be measured."""

import pytest
import torch

from kvchat.engine.api.namespace import Namespace
from kvchat.engine.api.recall import Item, Question
from kvchat.engine.api.request import Request
from kvchat.engine.api.sampling_params import SamplingParams
from kvchat.engine.engine import Engine
from kvchat.engine.quality.frontier import CANDIDATES
from kvchat.engine.quality.gauge import Text, predict
from kvchat.engine.quality.recall import examine
from kvchat.engine.results import collect
from kvchat.errors import ConfigError
from tests.engine.conftest import OpenEngine, TinyModels
from tests.engine.quality.conftest import BLOCK, OpenGauge
from tests.engine.tiny_models import token_ids

pytestmark = pytest.mark.cpu


def told(engine: Engine, ids: list[int], answer_starts: tuple[int, ...], num_tokens: int) -> list[int]:
    """Return an answer in a conversation whose answers begin there."""
    request = Request(
        token_ids=tuple(ids),
        sampling=SamplingParams(max_tokens=num_tokens),
        namespace=str(Namespace(owner="somebody", answer_starts=answer_starts)),
    )
    result = collect(engine.submit(request))
    for sequence in result.sequences:
        engine.release(sequence)
    return list(result.token_ids)


@pytest.mark.parametrize("cache_format", ["keydiff:48", "snapkv:48"])
def test_prompts_are_pruned_where_they_end_and_not_where_what_is_predicted_begins(
    cache_format: str, gauge_of: OpenGauge, tiny: TinyModels, open_engine: OpenEngine
) -> None:
    """The last tokens of a second answer; its question is short, so both answers' ends are near."""
    engine = open_engine(tiny("llama"), cache_format=cache_format)
    ids = token_ids(203)
    ids += told(engine, ids, (203,), 150)
    ids += token_ids(7, seed=5)
    ends = (203, len(ids))
    answer = told(engine, ids, ends, 30)
    text = Text((*ids, *answer), tuple(range(len(ids) + 18, len(ids) + 30)), ends)
    found = predict(gauge_of().replay(cache_format, len(text.token_ids)), text, 0)
    assert found.argmax(1).tolist() == answer[18:]
    elsewhere = Text(text.token_ids, text.wanted)
    other = predict(gauge_of().replay(cache_format, len(text.token_ids)), elsewhere, 0)
    assert not torch.allclose(found, other, atol=0.05)


def test_what_lies_behind_the_last_wanted_token_prunes_nothing(gauge_of: OpenGauge) -> None:
    ids = tuple(token_ids(300))
    text = Text(ids, (260, 270), (203, 275, 290))
    found = predict(gauge_of().replay("snapkv:48", 300), text, 0)
    before = predict(gauge_of().replay("snapkv:48", 300), Text(ids, (260, 270), (203,)), 0)
    torch.testing.assert_close(found, before)


def test_a_token_over_a_view_takes_what_the_text_holds_divided_by_its_tokens(gauge_of: OpenGauge) -> None:
    text = Text(tuple(token_ids(233)), tuple(range(203, 233)))
    formats = ["window:32", "snapkv:48", "window:512", "int8"]
    report = gauge_of().measure(text, formats, is_converted=True)
    shares = [one.token_bytes / report.exact_token_bytes for one in report.formats]
    assert shares[:3] == pytest.approx([4 * BLOCK / 233, 9 * BLOCK / 233, 1])
    # Nothing is converted to a view: its blocks are exact as they are.
    assert [one.is_converted for one in report.formats] == [False, False, False, True]


def test_an_exam_over_a_view_counts_what_is_in_sight(gauge_of: OpenGauge) -> None:
    questions = (Question(token_ids=tuple(token_ids(13)), answer_ids=(5, 6)),)
    items = [
        Item(kind="recall", token_ids=tuple(token_ids(200)), predicted=(190,), questions=questions),
        Item(kind="recall", token_ids=tuple(token_ids(300)), predicted=(290,), questions=questions),
    ]
    exact, window, pruned = examine(gauge_of(), items, ["window:32", "snapkv:48"])
    assert 0 < window.token_bytes < exact.token_bytes / 2
    assert 0 < pruned.token_bytes < exact.token_bytes


def test_the_gauge_replays_what_an_engine_computes_through_a_shadow(
    gauge_of: OpenGauge, tiny: TinyModels, open_engine: OpenEngine
) -> None:
    """The first tokens of answers to follow-ups, which differ from those of the exact cache."""
    engine = open_engine(tiny("llama"), cache_format="shadow:16:forced", max_batch_tokens=64)
    ids = token_ids(203)
    ids += told(engine, ids, (203,), 1)
    differing = 0
    for seed in range(8):
        later = [*ids, *token_ids(40, seed=seed)]
        (answer,) = told(engine, later, (203, len(later)), 1)
        text = Text((*later, answer), (len(later),), (203, len(later)))
        found = predict(gauge_of().replay("shadow:16:forced", len(text.token_ids)), text, 0)
        assert int(found.argmax()) == answer
        exact = predict(gauge_of().replay("exact", len(text.token_ids)), text, 0)
        differing += int(exact.argmax()) != answer
    assert differing


def test_the_gauge_counts_a_shadow_beside_the_blocks_that_it_is_made_from(gauge_of: OpenGauge) -> None:
    ids = token_ids(303)
    text = Text(tuple(ids), tuple(range(260, 300)), (203,))
    report = gauge_of().measure(text, ["shadow:64:forced", "shadow:640:forced"])
    some, whole = report.formats
    assert whole.loss.divergence < 1e-6 < some.loss.divergence
    assert whole.num_bytes > report.exact_bytes
    assert some.token_bytes == report.exact_token_bytes


def test_an_exam_asks_its_questions_through_a_shadow_of_the_context(gauge_of: OpenGauge) -> None:
    questions = tuple(
        Question(token_ids=tuple(token_ids(13, seed)), answer_ids=(5, 6, 7)) for seed in range(3)
    )
    item = Item(kind="recall", token_ids=tuple(token_ids(300)), predicted=(290,), questions=questions)
    exact, whole, some = examine(gauge_of(), [item], ["shadow:640:forced", "shadow:16:forced"])
    assert whole.right == exact.right
    assert whole.answers.divergence < 1e-6 < some.answers.divergence


def test_only_formats_that_the_model_has_a_form_for_are_usual_ones(gauge_of: OpenGauge) -> None:
    assert gauge_of("V3").supported(CANDIDATES) == ("fp8",)
    assert gauge_of().supported(CANDIDATES) == CANDIDATES
    assert gauge_of(chunk_len=16).supported(("snapkv:64", "knorm:64", "int8")) == ("knorm:64", "int8")


def test_steps_that_are_too_short_for_a_view_are_refused(gauge_of: OpenGauge) -> None:
    text = Text(tuple(token_ids(233)), (230,))
    with pytest.raises(ConfigError, match="max_batch_tokens must be at least that, not 16"):
        gauge_of(chunk_len=16).measure(text, ["snapkv:64"])


def test_layers_alone_are_converted_to_what_quantizes_them(gauge_of: OpenGauge) -> None:
    text = Text(tuple(token_ids(100)), (90,))
    for layers_in in ("window:64", "exact"):
        with pytest.raises(ConfigError, match="--layers"):
            gauge_of().measure(text, ["int8"], layers_in=layers_in)
