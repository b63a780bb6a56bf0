"""One conversation: a state of told facts and turns that tell, ask, chat and exercise."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from tools.starter import documents, facts, faq, outside, phrasing, skills, smalltalk, words
from tools.starter.fact_kinds import KIND_BY_NAME
from tools.starter.facts import Fact
from tools.starter.split import Split
from tools.starter.words import Lexicon

SYSTEM_PROMPTS = (
    "You are a helpful assistant.",
    "You are the starter model of kvchat.",
    "Answer briefly.",
    "Be polite and short.",
    "You are a friendly assistant in a terminal.",
    "Remember what the user tells you.",
    "Answer in plain English.",
)


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a conversation.

    Args:
        role: system, user or assistant.
        text: Its content.
        weight: Weight of its tokens in the loss; 0 for messages that are not learned.
        routed: Whether its first tokens choose between answers, and so weigh more.
        sought: The part that has to be found in the context, which weighs more too.
    """

    role: str
    text: str
    weight: float = 0.0
    routed: bool = False
    sought: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mix:
    """Relative frequencies of the kinds of turns, and how a conversation tells and asks for facts.

    Args:
        update_share: Share of statements that change a known fact.
        unknown_share: Share of questions for something that was not told.
        said_once_share: Share of questions restricted to facts that no answer has repeated: the hard ones.
        longest_document: Most filler sentences of a document.
        round_share: Share of conversations that tell for a long time, ask for all that was told, and so on:
            far questions for facts that no answer has repeated.
        exercises: Frequencies of the skills.
        noun_share: Share of the questions of the FAQ that fill a noun into a shared template, where one can.
        is_spaced: Whether a person's words have a space before them, as in the chat template.
    """

    fact: float
    query: float
    faq: float
    small: float
    outside: float
    skill: float
    document: float
    update_share: float = 0.2
    unknown_share: float = 0.16
    said_once_share: float = 0.0
    longest_document: int = 20
    round_share: float = 0.0
    exercises: skills.Exercises = field(default_factory=skills.Exercises)
    noun_share: float = 0.55
    is_spaced: bool = True

    @property
    def turn_weights(self) -> tuple[float, ...]:
        """The frequencies in the order of `TURNS`."""
        return (self.fact, self.query, self.faq, self.small, self.outside, self.skill, self.document)


TURNS_BEFORE_QUESTIONS = (6, 120)
TURNS = ("fact", "query", "faq", "small", "outside", "skill", "document")


def _user(text: str) -> Message:
    return Message("user", text)


def _answer(text: str, weight: float, routed: bool = True) -> Message:
    return Message("assistant", text, weight, routed)


@dataclass(slots=True)
class Conversation:
    """Writes the turns of one conversation; all randomness comes from `rng`."""

    rng: random.Random
    lexicon: Lexicon
    mix: Mix
    told: dict[tuple[str, str], Fact] = field(default_factory=dict)
    updated: list[tuple[str, str]] = field(default_factory=list)
    said_once: dict[tuple[str, str], None] = field(default_factory=dict)
    unasked: dict[tuple[str, str], None] = field(default_factory=dict)

    def messages(self) -> Iterator[Message]:
        """Yield messages without end."""
        if self.rng.random() < 0.35:
            yield Message("system", self.rng.choice(SYSTEM_PROMPTS))
        if self.mix.round_share and self.rng.random() < self.mix.round_share:
            while True:
                yield from self._round()
        while True:
            yield from self._turn(self.mix.turn_weights)

    def _turn(self, weights: tuple[float, ...]) -> list[Message]:
        writers = {
            "fact": self.fact_turn,
            "query": self.query_turn,
            "faq": self.faq_turn,
            "small": self.small_turn,
            "outside": self.outside_turn,
            "skill": self.skill_turn,
            "document": self.document_turn,
        }
        return writers[self.rng.choices(TURNS, weights)[0]]()

    def _round(self) -> Iterator[Message]:
        """Tell among other turns, a few or very many; then ask for all of it in any order."""
        low, high = (math.log(number) for number in TURNS_BEFORE_QUESTIONS)
        telling = replace(self.mix, query=0.0, fact=self.mix.fact + self.mix.query).turn_weights
        for _ in range(round(math.exp(self.rng.uniform(low, high)))):
            yield from self._turn(telling)
        chatting = replace(self.mix, query=0.0, fact=0.0, document=0.0).turn_weights
        keys = list(self.unasked)
        self.rng.shuffle(keys)
        for key in keys:
            if self.rng.random() < 0.1:
                yield from self._turn(chatting)
            if self.rng.random() < self.mix.unknown_share:
                yield from self.unknown_turn()
            yield from self._question(self.told[key])

    def _new_fact(self) -> Fact:
        kind = facts.pick_kind(self.rng)
        return facts.make_fact(self.rng, Split.TRAIN, self.lexicon, kind)

    def _changed_fact(self) -> Fact:
        key = self.rng.choice(list(self.told))
        old = self.told[key]
        return facts.make_fact(self.rng, Split.TRAIN, self.lexicon, old.kind, old.key)

    def remember(self, fact: Fact) -> bool:
        """Note that `fact` was told; says whether it replaced another value."""
        key = (fact.kind.name, fact.key)
        replaced = key in self.told
        self.said_once.pop(key, None)  # so that the oldest stay first
        self.said_once[key] = self.unasked[key] = None
        if replaced:
            self.updated.append(key)
        self.told[key] = fact
        return replaced

    def fact_turn(self) -> list[Message]:
        """Tell one fact, sometimes two; or tell a known one anew with another value."""
        if self.told and self.rng.random() < self.mix.update_share:
            fact = self._changed_fact()
            self.remember(fact)
            text = facts.state(self.rng, Split.TRAIN, fact, update=self.rng.random() < 0.75)
            return [_user(text), self._acknowledge(fact, update=True)]
        fact = self._new_fact()
        replaced = self.remember(fact)
        text = facts.state(self.rng, Split.TRAIN, fact)
        if self.rng.random() < 0.06:
            hello = smalltalk.INTENTS[0]
            return [_user(f"{smalltalk.say(self.rng, hello)} {text}"), _answer(hello.reply, 1.0)]
        if self.rng.random() < 0.15:
            other = self._new_fact()
            self.remember(other)
            text = f"{text} {facts.state(self.rng, Split.TRAIN, other)}"
            return [_user(text), _answer("OK, I will remember both.", 0.5, routed=False)]
        return [_user(text), self._acknowledge(fact, replaced)]

    def _acknowledge(self, fact: Fact, update: bool) -> Message:
        message = acknowledge(self.rng, fact, update)
        key = (fact.kind.name, fact.key)
        if fact.value in message.text:
            self.said_once.pop(key, None)
        else:
            self.said_once[key] = None
        return message

    def query_turn(self) -> list[Message]:
        """Ask for a fact that was told, or sometimes for one that was not."""
        if not self.told:
            return self.unknown_turn() if self.rng.random() < 0.4 else self.fact_turn()
        if self.rng.random() < self.mix.unknown_share:
            return self.unknown_turn()
        if self.said_once and self.rng.random() < self.mix.said_once_share:
            fact = self.told[self._said_once_key()]
        elif self.updated and self.rng.random() < 0.3:
            fact = self.told[self.rng.choice(self.updated)]
        else:
            fact = self.rng.choice(list(self.told.values()))
        return self._question(fact)

    def _question(self, fact: Fact) -> list[Message]:
        return [_user(facts.ask(self.rng, Split.TRAIN, fact)), self._found(fact)]

    def _found(self, fact: Fact) -> Message:
        self.said_once.pop((fact.kind.name, fact.key), None)
        self.unasked.pop((fact.kind.name, fact.key), None)
        return Message("assistant", fact.answer, 2.0, routed=True, sought=fact.value)

    def _said_once_key(self) -> tuple[str, str]:
        """Return a fact that was said once: half the time one of the oldest third, the farthest away."""
        keys = list(self.said_once)
        if self.rng.random() < 0.5:
            keys = keys[: len(keys) // 3 + 1]
        return self.rng.choice(keys)

    def unknown_turn(self) -> list[Message]:
        """Ask for a fact that was not told, half the time one of a kind of which another was."""
        while True:
            fact = self._new_fact()
            if self.told and self.rng.random() < 0.4:
                kind = self.rng.choice(list(self.told.values())).kind
                fact = facts.make_fact(self.rng, Split.TRAIN, self.lexicon, kind)
            if (fact.kind.name, fact.key) not in self.told:
                break
            if len(self.told) > 60:
                return self.faq_turn()
        return [_user(facts.ask(self.rng, Split.TRAIN, fact)), _answer(fact.unknown_answer, 1.5)]

    def faq_turn(self) -> list[Message]:
        """Ask a question of the FAQ."""
        topic = self.rng.choice(faq.TOPICS)
        question = phrasing.ask_topic(self.rng, topic, self.mix.noun_share)
        return [
            _user(self._as_typed(question)),
            _answer(topic.answer, 0.6 if topic.name == "overview" else 1.0),
        ]

    def small_turn(self) -> list[Message]:
        """Exchange a courtesy."""
        intent = smalltalk.pick_intent(self.rng)
        said = smalltalk.say(self.rng, intent)
        return [_user(phrasing.noisy(self.rng, said, typos=0.03)), _answer(intent.reply, 1.0)]

    def outside_turn(self) -> list[Message]:
        """Ask something the model was not made for."""
        question = outside.ask_outside(self.rng, self.lexicon)
        return [_user(self._as_typed(question)), _answer(outside.FALLBACK, 0.7)]

    def skill_turn(self) -> list[Message]:
        """Ask for a small exercise."""
        exercise = skills.exercise(self.rng, self.lexicon, self.mix.exercises)
        weight = 1.0 if exercise.name.startswith("count") else 1.5
        if exercise.name.startswith("count") and len(exercise.answer) > 60:
            weight = 0.5
        request = phrasing.noisy(self.rng, exercise.request, typos=0.0)
        answer = Message("assistant", exercise.answer, weight, routed=True, sought=exercise.sought)
        return [_user(request), answer]

    def document_turn(self) -> list[Message]:
        """Give a document to read, with up to three facts hidden in it; or ask for one of them below it."""
        found: dict[tuple[str, str], Fact] = {}
        for _ in range(self.rng.choice((0, 1, 1, 2, 3))):
            fact = self._new_fact() if self.rng.random() < 0.5 else self._passkey()
            found[fact.kind.name, fact.key] = fact
        for fact in found.values():
            self.remember(fact)
        told = [facts.state(self.rng, Split.TRAIN, fact) for fact in found.values()]
        hidden = [(self.rng.random(), text) for text in told]
        num_sentences = self.rng.randint(3, self.mix.longest_document)
        if found and self.rng.random() < 0.5:
            fact = self.rng.choice(list(found.values()))
            question = facts.ask(self.rng, Split.TRAIN, fact)
            text = documents.notes(self.rng, self.rng.randint(1, num_sentences), hidden, question)
            return [_user(text), self._found(fact)]
        text = documents.document(self.rng, num_sentences, hidden)
        return [_user(text), _answer(documents.READ, 0.5, routed=False)]

    def _passkey(self) -> Fact:
        key = self.rng.choice(words.SECRETS)
        return facts.make_fact(self.rng, Split.TRAIN, self.lexicon, KIND_BY_NAME["secret"], key)

    def _as_typed(self, question: str) -> str:
        if self.rng.random() < 0.25:
            question = phrasing.wrap(self.rng, question)
        return phrasing.noisy(self.rng, question)


def acknowledge(rng: random.Random, fact: Fact, update: bool = False) -> Message:
    """Confirm that a fact was heard: by an echo, which states it once more, or without one."""
    if update:
        echo = "Updated: " + fact.answer[0].lower() + fact.answer[1:]
        silent = "OK, I have changed that."
    else:
        echo = "Got it, " + fact.answer[0].lower() + fact.answer[1:]
        silent = "OK, I will remember that."
        if fact.kind.greeting and rng.random() < 0.8:
            return _answer(fact.kind.greeting.format(v=fact.value), 1.0, routed=False)
    if rng.random() < 0.55:
        return _answer(echo, 0.7, routed=False)
    return _answer(silent, 0.3, routed=False)
