"""The corpus is determined by its seed and never contains what is held out."""

from __future__ import annotations

import itertools
import random
import re
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tools.starter import corpus, facts, faq, outside, phrasing, skills, smalltalk
from tools.starter.conversation import Conversation, Message
from tools.starter.fact_kind import FactKind
from tools.starter.fact_kinds import KINDS
from tools.starter.schedule import LONG_MIX, SHORT_MIX, STAGES
from tools.starter.split import Split, forms_of, is_held_out_value
from tools.starter.words import Lexicon

pytestmark = [pytest.mark.pure, pytest.mark.long]

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


def test_held_out_values_are_never_told_in_training() -> None:
    for seed in range(100):
        mix = STAGES[-1].mix if seed % 2 else SHORT_MIX
        conversation = Conversation(random.Random(seed), TRAINING_LEXICON, mix)
        list(itertools.islice(conversation.messages(), 80))
        for fact in conversation.told.values():
            for value in re.split(r", | and ", fact.value) if fact.kind.name == "list" else [fact.value]:
                single = value.removeprefix("a ").removeprefix("an ") if fact.kind.name == "job" else value
                assert not is_held_out_value(single), fact


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


def test_the_corpus_needs_no_torch() -> None:
    block = "import sys; sys.modules['torch'] = None; "
    code = block + "from tools.starter import corpus; next(corpus.conversation(0))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
