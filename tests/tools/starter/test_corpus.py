"""The corpus is determined by its seed and never contains what is held out."""

from __future__ import annotations

import itertools
import random
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tools.starter import corpus, documents, facts, faq, outside, phrasing, skills, smalltalk, words
from tools.starter.conversation import Conversation, Message
from tools.starter.fact_kind import FactKind
from tools.starter.fact_kinds import KINDS
from tools.starter.phrases import further_forms
from tools.starter.schedule import LONG_MIX, SHORT_MIX, STAGES
from tools.starter.split import Split, forms_of, is_held_out_value
from tools.starter.words import Lexicon

pytestmark = pytest.mark.pure

PIECES = ("ab", "cat", "dor", "el", "fin", "gus", "hol", "im", "jun")
LEXICON = Lexicon(pieces=PIECES)
TRAINING_LEXICON = Lexicon(pieces=PIECES, openings=("wed", "satur", "kar"), sign_share=0.25)
SKILL_FORMS = (
    skills.REPEAT,
    skills.COUNT_TO,
    skills.COUNT_FROM,
    skills.COUNT_DOWN,
    skills.ADD,
    skills.TIMES,
    skills.FIRST,
    skills.LAST,
)


def _messages(num_conversations: int = 150, num_messages: int = 80) -> Iterator[Message]:
    for seed in range(num_conversations):
        mix = (SHORT_MIX, LONG_MIX, STAGES[-1].mix)[seed % 3]
        yield from itertools.islice(corpus.conversation(seed, mix, TRAINING_LEXICON), num_messages)


def _held_out_texts() -> set[str]:
    """Every held-out phrasing that has no slot."""
    forms: list[str] = []
    for topic in faq.TOPICS:
        forms += phrasing.topic_forms(topic, Split.HELD_OUT)
    for intent in smalltalk.INTENTS:
        forms += smalltalk.intent_forms(intent, Split.HELD_OUT)
    forms += outside.templates(Split.HELD_OUT)
    return {phrasing.normal(form.replace("{x}", "")) for form in forms if "{" not in form.replace("{x}", "")}


def _held_out_patterns() -> list[re.Pattern[str]]:
    """Every held-out request with slots, each slot one word or one number."""
    forms: list[str] = []
    for bank in SKILL_FORMS:
        forms += forms_of(bank, Split.HELD_OUT, skills.NUM_HELD_OUT_FORMS)
    forms += [form for form in outside.templates(Split.HELD_OUT) if "{" in form]
    patterns = []
    for form in forms:
        pattern = re.escape(form.rstrip(".?!").lower()).replace(r"\{", "{").replace(r"\}", "}")
        pattern = re.sub(r"\{[abdn]2?\}", r"\\d+", pattern)
        patterns.append(re.compile(re.sub(r"\{\w+\}", r"\\w+", pattern) + r"\W*"))
    return patterns


def test_a_seed_determines_the_conversation() -> None:
    first = list(itertools.islice(corpus.conversation(7, LONG_MIX, LEXICON), 200))
    again = list(itertools.islice(corpus.conversation(7, LONG_MIX, LEXICON), 200))
    other = list(itertools.islice(corpus.conversation(8, LONG_MIX, LEXICON), 200))
    assert first == again
    assert first != other


def test_held_out_questions_never_appear_in_training() -> None:
    held_out = _held_out_texts()
    assert len(held_out) > 100
    seen = {phrasing.normal(message.text) for message in _messages() if message.role == "user"}
    assert not seen & held_out


def test_held_out_requests_never_appear_in_training() -> None:
    patterns = _held_out_patterns()
    texts = {message.text.lower() for message in _messages() if message.role == "user"}
    for text in texts:
        for pattern in patterns:
            assert not pattern.fullmatch(text), (text, pattern.pattern)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_a_fact_is_never_told_or_asked_for_in_a_held_out_way(kind: FactKind) -> None:
    clauses = forms_of(kind.clauses, Split.HELD_OUT, facts.NUM_HELD_OUT_CLAUSES)
    questions = forms_of(kind.questions, Split.HELD_OUT, facts.NUM_HELD_OUT_QUESTIONS)
    assert clauses
    assert questions
    rng = random.Random(0)
    for _ in range(300):
        fact = facts.make_fact(rng, Split.TRAIN, LEXICON, kind)
        told = facts.state(rng, Split.TRAIN, fact, update=rng.random() < 0.3).lower()
        asked = phrasing.normal(facts.ask(rng, Split.TRAIN, fact))
        assert not any(told.startswith(c.format(k=fact.key, v=fact.value).lower()) for c in clauses)
        assert not any(asked == phrasing.normal(question.format(k=fact.key)) for question in questions)


def test_a_question_is_never_wrapped_in_a_held_out_way_in_training() -> None:
    held_out = [wrapper.removesuffix("{q}") for wrapper in phrasing.wrappers(Split.HELD_OUT)]
    rng = random.Random(0)
    for _ in range(500):
        text = phrasing.wrap(rng, "Zzz?")
        assert text.lower() != "zzz?"
        assert not any(text.startswith(w) or text == w.replace("{q}", "Zzz?") for w in held_out)


def test_held_out_values_are_never_told_in_training() -> None:
    for seed in range(100):
        mix = STAGES[-1].mix if seed % 2 else SHORT_MIX
        conversation = Conversation(random.Random(seed), TRAINING_LEXICON, mix)
        list(itertools.islice(conversation.messages(), 80))
        for fact in conversation.told.values():
            for value in re.split(r", | and ", fact.value) if fact.kind.name == "list" else [fact.value]:
                single = value.removeprefix("a ").removeprefix("an ") if fact.kind.name == "job" else value
                assert not is_held_out_value(single), fact


@given(seed=st.integers(min_value=0, max_value=10**9))
@settings(max_examples=50, deadline=None)
def test_words_lie_on_the_side_they_were_asked_from(seed: int) -> None:
    rng = random.Random(seed)
    for split in Split:
        held_out = split is Split.HELD_OUT
        assert is_held_out_value(LEXICON.word(rng, split)) == held_out
        assert is_held_out_value(words.code(rng, split, LEXICON)) == held_out
        assert is_held_out_value(words.date(rng, split)) == held_out
        items = words.word_list(rng, split, LEXICON, 4)
        assert all(is_held_out_value(item) == held_out for item in items)
        assert len(set(items)) == 4


def test_some_made_up_words_hold_a_sign_and_some_open_as_no_other_does() -> None:
    rng = random.Random(0)
    made_up = [TRAINING_LEXICON.word(rng, Split.TRAIN) for _ in range(400)]
    assert 0.1 < sum(not word.isalpha() for word in made_up) / len(made_up) < 0.3
    assert all(word[0].isalpha() and word[-1].isalpha() for word in made_up)
    names = [TRAINING_LEXICON.pooled(rng, Split.TRAIN, words.NAMES, 0.0) for _ in range(400)]
    assert 0.3 < sum(name.startswith(("Wed", "Satur", "Kar")) for name in names) / len(names) < 0.7
    assert not any(is_held_out_value(word) for word in (*made_up, *names))


def test_a_round_asks_for_all_that_was_told_before_it_tells_on() -> None:
    mix = replace(SHORT_MIX, round_share=1.0, document=0, small=0, unknown_share=0.0)
    conversation = Conversation(random.Random(3), LEXICON, mix)
    left = [
        len(conversation.unasked)
        for message in itertools.islice(conversation.messages(), 600)
        if message.weight == 2.0
    ]
    assert len(left) > 50
    assert max(left) > 20
    assert all(after == before - 1 for before, after in itertools.pairwise(left) if before > 0)


@pytest.mark.parametrize("num_held_out", [0, 1, 3])
def test_every_phrasing_lies_on_exactly_one_side(num_held_out: int) -> None:
    forms = phrasing.NOUN_TEMPLATES
    train = forms_of(forms, Split.TRAIN, num_held_out)
    held_out = forms_of(forms, Split.HELD_OUT, num_held_out)
    assert len(held_out) == num_held_out
    assert sorted(train + held_out) == sorted(forms)
    assert forms[0] in train


def test_the_further_forms_belong_to_training() -> None:
    sides = {topic.name: phrasing.topic_forms(topic, Split.TRAIN) for topic in faq.TOPICS}
    sides |= {intent.name: smalltalk.intent_forms(intent, Split.TRAIN) for intent in smalltalk.INTENTS}
    assert sides.keys() == further_forms().keys()
    for name, forms in further_forms().items():
        assert forms
        assert set(forms) <= set(sides[name])


def test_no_question_has_two_answers() -> None:
    answers: dict[str, str] = {}
    for topic in faq.TOPICS:
        filled = [phrasing.fill(form, noun) for form in phrasing.NOUN_TEMPLATES for noun in topic.nouns]
        for form in (*topic.forms, *filled):
            assert answers.setdefault(phrasing.normal(form), topic.answer) == topic.answer, form
    for intent in smalltalk.INTENTS:
        for form in intent.forms:
            text = phrasing.normal(form.replace("{x}", ""))
            assert answers.setdefault(text, intent.reply) == intent.reply, form
    for form in outside.TEMPLATES:
        assert phrasing.normal(form) not in answers, form


def test_answers_to_exercises_are_right() -> None:
    rng = random.Random(0)
    for _ in range(300):
        exercise = skills.add(rng, Split.TRAIN, Split.TRAIN)
        a, b = (int(number) for number in re.findall(r"\d+", exercise.request))
        assert exercise.answer == f"The answer is {a + b}."
        count = skills.count_up(rng, Split.TRAIN)
        numbers = [int(number) for number in re.findall(r"\d+", count.answer)]
        assert numbers == list(range(numbers[0], numbers[-1] + 1))


def test_a_list_can_be_made_to_open_the_request() -> None:
    rng = random.Random(0)
    for last in (False, True):
        for _ in range(30):
            exercise = skills.pick_item(rng, Split.TRAIN, Split.TRAIN, LEXICON, last, list_opens=True)
            items = exercise.request.split(", ")
            assert exercise.sought == (exercise.answer.split()[-1].removesuffix("."))
            if not last:
                assert exercise.request.startswith(exercise.sought)
            assert len(items) > 1


def test_the_newest_value_is_the_one_remembered() -> None:
    conversation = Conversation(random.Random(0), LEXICON, SHORT_MIX)
    kind = KINDS[0]
    old = facts.make_fact(random.Random(1), Split.TRAIN, LEXICON, kind)
    new = facts.make_fact(random.Random(2), Split.TRAIN, LEXICON, kind)
    assert not conversation.remember(old)
    assert conversation.remember(new)
    assert conversation.told[kind.name, ""].answer == new.answer


def test_a_fact_counts_as_said_once_until_an_answer_repeats_it() -> None:
    conversation = Conversation(random.Random(0), LEXICON, LONG_MIX)
    for message in itertools.islice(conversation.messages(), 200):
        if message.role == "assistant":
            for key in conversation.said_once:
                assert conversation.told[key].answer != message.text


def test_a_hidden_sentence_stands_at_its_depth() -> None:
    text = documents.document(random.Random(0), 40, [(0.0, "First."), (1.0, "Last.")])
    assert text.endswith("Last.")
    assert text.index("First.") < 40


def test_the_corpus_needs_no_torch() -> None:
    block = "import sys; sys.modules['torch'] = None; "
    code = block + "from tools.starter import corpus; next(corpus.conversation(0))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
