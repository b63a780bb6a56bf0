"""What formats lose, measured on a text: held to passes over the whole text, and to caches of engines."""

import pytest
import torch

from kvchat.engine.api.recall import Item, Question
from kvchat.engine.quality.gauge import EXACT, MOST_ROWS, Text, predict, token_losses
from kvchat.engine.quality.recall import examine
from kvchat.errors import ConfigError, ContextOverflow, UsageError
from tests.engine.conftest import OpenEngine, TinyModels
from tests.engine.quality.conftest import BLOCK, OpenGauge
from tests.engine.tiny_models import answer, reference, token_ids

pytestmark = pytest.mark.cpu


def a_text(num_tokens: int = 150, num_wanted: int = 20) -> Text:
    return Text(tuple(token_ids(num_tokens)), tuple(range(num_tokens - num_wanted, num_tokens)))


@pytest.mark.parametrize("kind", ["llama", "gemma3"])
def test_the_exact_replay_predicts_what_the_model_does(
    kind: str, gauge_of: OpenGauge, tiny: TinyModels
) -> None:
    text = Text(tuple(token_ids(90)), (20, 21, 22, 60, 88, 89))
    found = predict(gauge_of(kind).replay(EXACT, 90), text, 0)
    wanted = reference(tiny(kind)).logits(text.token_ids)[[position - 1 for position in text.wanted]]
    torch.testing.assert_close(found, wanted, atol=2e-4, rtol=2e-4)


@pytest.mark.parametrize("is_converted", [False, True])
@pytest.mark.parametrize("kind", ["llama", "gemma3", "Qwen3_5", "Jamba"])
def test_the_exact_format_loses_nothing(kind: str, is_converted: bool, gauge_of: OpenGauge) -> None:
    report = gauge_of(kind).measure(a_text(), [EXACT], is_converted=is_converted)
    (found,) = report.formats
    assert found.loss.agreement == 1.0
    assert found.loss.divergence < 1e-9
    assert found.loss.perplexity_ratio == pytest.approx(1.0, abs=1e-5)
    assert (found.num_bytes, found.token_bytes) == (report.exact_bytes, report.exact_token_bytes)


def test_fewer_bits_lose_more_and_take_fewer_bytes(gauge_of: OpenGauge) -> None:
    report = gauge_of().measure(a_text(), ["int8", "int4", "int2"])
    losses = [one.loss.divergence for one in report.formats]
    assert 0 < losses[0] < losses[1] < losses[2]
    sizes = [report.exact_bytes, *(one.num_bytes for one in report.formats)]
    assert sizes == sorted(sizes, reverse=True)
    assert [one.loss.num_tokens for one in report.formats] == [20] * 3


@pytest.mark.parametrize("chunk_len", [7, 512])
def test_what_is_lost_does_not_depend_on_how_the_text_was_cut(chunk_len: int, gauge_of: OpenGauge) -> None:
    """Trap 32."""
    text = a_text()
    wanted = predict(gauge_of().replay("int4", 150), text, 0)
    found = predict(gauge_of(chunk_len=chunk_len).replay("int4", 150), text, 0)
    torch.testing.assert_close(found, wanted, atol=2e-3, rtol=0)


def test_converting_quantizes_the_context_and_leaves_its_end_exact(gauge_of: OpenGauge) -> None:
    """The first token computed after converting reads the context as an engine would have quantized it."""
    gauge, text = gauge_of(), a_text(150, 1)
    exact = gauge.replay(EXACT, 150, 150)
    predict(exact, text, 0)
    converted = gauge.replay("int4", 150)
    converted.convert(exact, 148)
    (quantized,) = (group for group in converted.groups if group.source is not None)
    assert quantized.num_blocks(148, BLOCK) == 8
    pool = converted.pool.layers[0].derived
    assert pool is not None
    records = pool.keys[:, :, 0].flatten(1).any(dim=1)
    assert records[:8].all()
    assert not records[8:].any()
    recent = converted.pool.layers[0].keys[
        converted.places(converted.pool.layers[0].group, torch.tensor([8]))
    ]
    torch.testing.assert_close(recent, exact.pool.layers[0].keys[8:9])


def test_taking_back_and_computing_something_else_leaves_no_trace(gauge_of: OpenGauge) -> None:
    gauge, context = gauge_of("gemma3"), token_ids(130)
    replay = gauge.replay("int8", 190, 60)
    replay.compute(context, 0)
    first = replay.compute(token_ids(30, seed=1), 130, 5)
    replay.compute(token_ids(55, seed=2), 130, 5)
    torch.testing.assert_close(replay.compute(token_ids(30, seed=1), 130, 5), first, atol=0, rtol=0)


def test_each_layer_alone_loses_less_than_all_and_names_those_that_are_quantized(gauge_of: OpenGauge) -> None:
    report = gauge_of("gemma3").measure(a_text(), ["int2"], is_converted=True, layers_in="int2")
    assert [one.layer for one in report.layers] == list(gauge_of("gemma3").quantized_layers("int2"))
    assert all(one.loss.divergence > 0 for one in report.layers)
    assert len(report.layers) < 4  # layers with a window stay exact


def test_latents_are_converted_to_their_own_format(gauge_of: OpenGauge) -> None:
    report = gauge_of("V3").measure(a_text(), ["fp8"], is_converted=True)
    assert 0 < report.formats[0].loss.divergence < 0.1


def test_what_cannot_be_measured_is_refused_with_the_reason(gauge_of: OpenGauge) -> None:
    gauge = gauge_of()
    with pytest.raises(UsageError, match="ask something first"):
        gauge.measure(Text((1, 2, 3), ()), ["int8"])
    with pytest.raises(ConfigError, match="int7"):
        gauge.measure(a_text(), ["int7"])
    with pytest.raises(ContextOverflow):
        gauge.measure(Text((1,) * 10**5, (1,)), ["int8"])
    with pytest.raises(ConfigError, match="no form for layer 0"):
        gauge_of("V3").measure(a_text(), ["int4"])
    many = MOST_ROWS // 64 + 2
    with pytest.raises((UsageError, ContextOverflow)):
        gauge.measure(Text((1,) * many, tuple(range(1, many))), ["int8"])


# The figures themselves


def test_figures_are_those_of_the_distributions() -> None:
    exact = torch.tensor([[2.0, 0.0, -1.0], [0.0, 1.0, 0.0], [0.0, 0.0, 3.0]])
    other = torch.tensor([[2.0, 0.0, -1.0], [1.0, 0.0, 0.0], [0.0, 1.0, 2.0]])
    told = torch.tensor([0, 1, 0])
    found = token_losses(exact, other, told)
    loss = found.loss()
    likely, less = exact.double().softmax(1), other.double().softmax(1)
    divergence = (likely * (likely / less).log()).sum(1)
    ratio = (likely.log() - less.log())[[0, 1, 2], told].mean().exp()
    assert loss.agreement == pytest.approx(2 / 3)
    assert loss.recall == pytest.approx(1 / 2)
    assert loss.divergence == pytest.approx(float(divergence.mean()))
    assert loss.worst_divergence == pytest.approx(float(divergence.max()))
    assert loss.perplexity_ratio == pytest.approx(float(ratio))


def test_a_token_that_a_format_calls_impossible_is_an_infinite_loss_and_never_nan() -> None:
    exact = torch.tensor([[0.0, 0.0, 0.0]])
    other = torch.tensor([[0.0, 0.0, float("-inf")]])
    assert token_losses(exact, other, torch.tensor([0])).loss().divergence == float("inf")
    gone = torch.tensor([[0.0, 0.0, float("-inf")]])
    assert token_losses(gone, gone, torch.tensor([0])).loss().divergence == 0.0
    wrong = torch.tensor([[0.0, float("nan"), 0.0]])
    assert token_losses(exact, wrong, torch.tensor([0])).loss().divergence == float("inf")


# Views


@pytest.mark.parametrize(
    "cache_format", ["int2", "window:32", "keydiff:48", "snapkv:48", "snapkv:48:pyramid"]
)
def test_a_replay_in_a_format_or_over_a_view_predicts_what_an_engine_with_it_answers(
    cache_format: str, gauge_of: OpenGauge, tiny: TinyModels, open_engine: OpenEngine
) -> None:
    prompt = token_ids(203)
    told = answer(open_engine(tiny("llama"), cache_format=cache_format), prompt, 30).token_ids
    text = Text(tuple(prompt + told), tuple(range(203, 233)))
    found = predict(gauge_of().replay(cache_format, 233), text, 0)
    assert found.argmax(1).tolist() == told


def test_views_are_measured_beside_formats_and_take_what_is_in_sight(gauge_of: OpenGauge) -> None:
    report = gauge_of().measure(a_text(233, 30), ["window:32", "snapkv:48", "window:512", "snapkv:512"])
    held = [one.num_bytes / report.exact_bytes for one in report.formats]
    num_blocks = -(-233 // BLOCK)
    assert held == pytest.approx([4 / num_blocks, (1 + 3 + 5) / num_blocks, 1, 1])
    losses = [one.loss.divergence for one in report.formats]
    assert min(losses[:2]) > 0.01
    assert losses[2:] == pytest.approx([0, 0], abs=1e-6)


@pytest.mark.parametrize("cache_format", ["window:32", "snapkv:48"])
def test_each_question_of_an_exam_is_answered_over_a_view_as_if_it_were_the_only_one(
    cache_format: str, gauge_of: OpenGauge, tiny: TinyModels, open_engine: OpenEngine
) -> None:
    """Pruned once its own question is known, and told by the engine itself."""
    context = tuple(token_ids(190))
    engine = open_engine(tiny("llama"), cache_format=cache_format)
    asked = [tuple(token_ids(13, seed)) for seed in (1, 2)]
    questions = tuple(
        Question(token_ids=one, answer_ids=tuple(answer(engine, [*context, *one], 6).token_ids))
        for one in asked
    )
    item = Item(kind="recall", token_ids=context, predicted=(180, 181, 189), questions=questions)
    exact, over_view = examine(gauge_of(), [item], [cache_format])
    assert over_view.right == ((True, True),)
    assert exact.right != over_view.right


def test_copies_of_a_model_answer_an_exam_together_as_one_does(gauge_of: OpenGauge) -> None:
    exam = [
        Item(
            kind="recall",
            token_ids=tuple(token_ids(100 + 7 * seed, seed)),
            predicted=(90, 91, 99),
            questions=(
                Question(token_ids=tuple(token_ids(9, 50 + seed)), answer_ids=tuple(token_ids(3, 80 + seed))),
            ),
        )
        for seed in range(4)
    ]
    counts: list[int] = []
    together = examine(gauge_of(), exam, ["int8", "int2"], counts.append, beside=[gauge_of()])
    assert together == examine(gauge_of(), exam, ["int8", "int2"])
    assert counts == [1, 2, 3, 4]


def test_of_a_hybrid_fewer_bits_lose_more_computed_or_converted_and_an_exam_goes_back_to_its_states(
    gauge_of: OpenGauge,
) -> None:
    """What is asked twice at one place is answered alike."""
    gauge = gauge_of("Qwen3_5")
    for is_converted in (False, True):
        report = gauge.measure(a_text(), ["int8", "int2"], is_converted=is_converted)
        assert 0 < report.formats[0].loss.divergence < report.formats[1].loss.divergence
        assert report.exact_bytes > report.formats[0].num_bytes > report.formats[1].num_bytes
    replay = gauge.replay(EXACT, 60)
    replay.compute(token_ids(50), 0)
    first, other, again = (replay.compute(ids, 50, 1) for ids in ([3, 4], [5], [3, 4]))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
