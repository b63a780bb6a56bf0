"""The built-in questions: what they are, and how answers to them are counted."""

from pathlib import Path

import pytest

import kvchat.starter
from kvchat.engine.api.loss import Loss
from kvchat.engine.api.recall import FormatMarks, Item
from kvchat.engine.quality.paired_score import paired_score
from kvchat.engine.quality.recall_suite import (
    END_ID,
    NEEDLE,
    RECALL,
    RECALL_FILE,
    ROLE_IDS,
    read_texts,
    suite_items,
)
from kvchat.errors import ModelUnreadable, UsageError
from tests.tiny_models import write_model
from tools.starter.recall_suite import SuiteGenerator, SuiteSize
from tools.starter.split import is_held_out_value

pytestmark = pytest.mark.pure

MODEL = Path(kvchat.starter.__file__).parent / "model"
SMALL = SuiteSize(num_conversations=3, num_facts=4, num_documents=2, length=700)
LOSS = Loss(
    num_tokens=1, agreement=1.0, divergence=0.0, worst_divergence=0.0, perplexity_ratio=1.0, recall=1.0
)


@pytest.fixture(scope="module")
def items() -> list[Item]:
    return list(SuiteGenerator(MODEL).items(SMALL))


def test_the_same_size_asks_the_same_every_time(items: list[Item]) -> None:
    assert list(SuiteGenerator(MODEL).items(SMALL)) == items


def test_the_shipped_texts_are_those_of_the_generator() -> None:
    """The whole file is written anew by `python -m tools.starter.recall_suite`; here its beginning."""
    shipped = read_texts(RECALL_FILE)
    assert [one.kind for one in shipped] == [RECALL] * 100 + [NEEDLE] * 40
    size = SuiteSize(num_conversations=2, num_documents=1)
    assert [*shipped[:2], shipped[100]] == list(SuiteGenerator(MODEL).texts(size))
    assert suite_items(MODEL, num_recall=2, num_needle=1) == list(SuiteGenerator(MODEL).items(size))


@pytest.mark.slow
def test_all_shipped_texts_are_those_of_the_generator() -> None:
    assert read_texts(RECALL_FILE) == list(SuiteGenerator(MODEL).texts(SuiteSize()))


def test_prompts_end_where_answers_begin(items: list[Item]) -> None:
    for item in items:
        assistant = ROLE_IDS["assistant"]
        behind = [place + 1 for place, token in enumerate(item.token_ids) if token == assistant]
        assert list(item.prompt_ends) == behind
        assert behind


def test_a_tokenizer_that_is_missing_or_another_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="starter"):
        suite_items(tmp_path)
    file = write_model(tmp_path) / "tokenizer.json"
    file.write_text(file.read_text().replace("<|user|>", "<|human|>"))
    with pytest.raises(UsageError, match="kvchat cache gauge SESSION"):
        suite_items(tmp_path)


def test_a_damaged_tokenizer_is_named_with_what_to_do(tmp_path: Path) -> None:
    file = write_model(tmp_path) / "tokenizer.json"
    file.write_text(file.read_text()[:100])
    with pytest.raises(ModelUnreadable, match=r"tokenizer\.json cannot be read .*download the model again"):
        suite_items(tmp_path)


def test_every_answer_stands_in_its_text_once_it_was_told(items: list[Item]) -> None:
    """Codes are found in documents; no question can be answered from its own words."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(MODEL / "tokenizer.json"))
    for item in items:
        text = tokenizer.decode(list(item.token_ids))
        for question in item.questions:
            value = tokenizer.decode(list(question.answer_ids)).rstrip(".").split()[-1]
            assert value in text
            assert value not in tokenizer.decode(list(question.token_ids))


def test_questions_end_where_an_answer_begins_and_answers_with_their_end(items: list[Item]) -> None:
    for question in (question for item in items for question in item.questions):
        assert question.token_ids[0] == ROLE_IDS["user"]
        assert question.token_ids[-1] == ROLE_IDS["assistant"]
        assert question.answer_ids[-1] == END_ID


def test_predicted_tokens_are_those_of_answers_at_the_end(items: list[Item]) -> None:
    for item in items:
        assert item.predicted
        assert max(item.predicted) < len(item.token_ids)
        assert all(item.token_ids[position] not in ROLE_IDS.values() for position in item.predicted)


def test_words_that_were_told_were_kept_out_of_training(items: list[Item]) -> None:
    """Values are held out or made up: of words from the pools none was trained on."""
    from tokenizers import Tokenizer

    from tools.starter import words

    tokenizer = Tokenizer.from_file(str(MODEL / "tokenizer.json"))
    for item in items[:3]:
        for question in item.questions:
            value = tokenizer.decode(list(question.answer_ids)).rstrip(".").split()[-1]
            assert value not in words.NAMES or is_held_out_value(value)


# Counting


def marks(*right: tuple[bool, ...]) -> FormatMarks:
    return FormatMarks(cache_format="x", right=right, answers=LOSS, texts=LOSS, token_bytes=1.0)


def asked(num_items: int, num_each: int, kind: str = RECALL) -> list[Item]:
    one = SuiteGenerator(MODEL)  # any item will do: only kinds and numbers count
    item = next(
        iter(one.items(SuiteSize(num_conversations=1, num_facts=num_each, num_documents=0, length=200)))
    )
    return [
        Item(kind=kind, token_ids=item.token_ids, predicted=item.predicted, questions=item.questions)
    ] * num_items


def test_points_lost_are_of_the_same_questions() -> None:
    items = asked(2, 2)
    score = paired_score(items, marks((True, True), (True, False)), marks((True, False), (True, True)))
    assert (score.exact, score.approximate, score.lost) == (0.75, 0.75, 0.0)
    assert (score.num_worse, score.num_better) == (1, 1)
    assert score.least_lost <= 0 <= score.most_lost


def test_an_interval_covers_what_is_lost_and_is_narrower_with_more_texts() -> None:
    def score(number: int) -> tuple[float, float, float]:
        items = asked(number, 2)
        lossy = marks(*([(True, False), (True, True)] * (number // 2)))
        found = paired_score(items, marks(*([(True, True)] * number)), lossy)
        return found.least_lost, found.lost, found.most_lost

    few, many = score(10), score(200)
    assert few[0] < few[1] == 25.0 < few[2]
    assert many[2] - many[0] < few[2] - few[0]
    assert many[0] > 0


def test_texts_stand_or_fall_as_a_whole() -> None:
    """Negative control: the same questions as texts of their own would seem surer than they are."""
    together = paired_score(
        asked(20, 5), marks(*([(True,) * 5] * 20)), marks(*([(False,) * 5, (True,) * 5] * 10))
    )
    apart = paired_score(asked(100, 1), marks(*([(True,)] * 100)), marks(*([(False,), (True,)] * 50)))
    assert together.lost == apart.lost == 50.0
    assert together.most_lost - together.least_lost > 1.5 * (apart.most_lost - apart.least_lost)


def test_no_difference_is_no_proof_of_none() -> None:
    found = paired_score(asked(100, 2), marks(*([(True, True)] * 100)), marks(*([(True, True)] * 100)))
    assert (found.lost, found.least_lost, found.most_lost) == (0.0, -3.0, 3.0)
    assert found.least_lost <= 0 <= found.most_lost
