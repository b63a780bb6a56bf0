"""What the evaluation asks: contexts with the one right answer, on held-out phrasings and values."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from tools.starter import documents, facts, words
from tools.starter.conversation import Conversation, Message, Mix, acknowledge
from tools.starter.fact_kinds import KIND_BY_NAME
from tools.starter.facts import Fact
from tools.starter.skills import Exercise
from tools.starter.split import Split
from tools.starter.tokenizer import opened
from tools.starter.words import Lexicon

DISTRACTION = Mix(fact=35, query=0, faq=20, small=12, outside=13, skill=20, document=0, update_share=0.0)
TRAIN, HELD_OUT = Split.TRAIN, Split.HELD_OUT
Measure = Callable[[str], int]


@dataclass(frozen=True, slots=True)
class Probe:
    """A context that ends with a question, and the answer greedy decoding must give token for token."""

    context: tuple[Message, ...]
    answer: str


@dataclass(frozen=True, slots=True)
class Interview:
    """A context, and questions about it that are asked one at a time, each with its only right answer."""

    context: tuple[Message, ...]
    questions: tuple[tuple[Message, str], ...]


SILENT = Message("assistant", "OK, I will remember that.")


def _echo(fact: Fact) -> Message:
    return Message("assistant", "Got it, " + fact.answer[0].lower() + fact.answer[1:])


@dataclass(frozen=True, slots=True)
class Prober:
    """Builds probes.

    Args:
        lexicon: Where random words come from.
        measure: Number of tokens of a text.
    """

    lexicon: Lexicon
    measure: Measure

    def _distraction(self, rng: random.Random, taken: tuple[Fact, ...], num_tokens: int) -> list[Message]:
        """Return turns of about `num_tokens` tokens that tell nothing about the keys of `taken`."""
        conversation = Conversation(rng, self.lexicon, DISTRACTION)
        protected = {(fact.kind.name, fact.key) for fact in taken}
        writers = (
            conversation.fact_turn,
            conversation.faq_turn,
            conversation.small_turn,
            conversation.outside_turn,
            conversation.skill_turn,
        )
        messages: list[Message] = []
        while num_tokens > 0:
            turn = rng.choices(writers, (35, 20, 12, 13, 20))[0]()
            if protected & conversation.told.keys():
                conversation.told.clear()
                continue
            messages += turn
            num_tokens -= sum(self.measure(opened(message.role, message.text)) + 2 for message in turn)
        return messages

    def _facts(self, rng: random.Random, number: int, values: Split = HELD_OUT) -> tuple[Fact, ...]:
        chosen: dict[tuple[str, str], Fact] = {}
        while len(chosen) < number:
            fact = facts.make_fact(rng, values, self.lexicon, facts.pick_kind(rng))
            chosen[fact.kind.name, fact.key] = fact
        return tuple(chosen.values())

    def recall(
        self, rng: random.Random, forms: Split, length: int, echo: bool, values: Split = HELD_OUT
    ) -> Probe:
        """Three facts, then other turns up to `length` tokens, then a question for one of the three."""
        told = self._facts(rng, 3, values)
        messages: list[Message] = []
        for fact in told:
            messages += [Message("user", facts.state(rng, forms, fact)), _echo(fact) if echo else SILENT]
        used = sum(self.measure(opened(message.role, message.text)) + 2 for message in messages)
        messages += self._distraction(rng, told, length - used - 40)
        fact = rng.choice(told)
        return Probe((*messages, Message("user", facts.ask(rng, forms, fact))), fact.answer)

    def passkey(self, rng: random.Random, length: int, depth: float) -> Probe:
        """Five digits in a document of `length` tokens."""
        digits = "".join(rng.choice("0123456789") for _ in range(5))
        fact = Fact(KIND_BY_NAME["secret"], rng.choice(words.SECRETS), digits)
        num_sentences = (length - 60) // 12
        text = documents.document(rng, num_sentences, [(depth, facts.state(rng, TRAIN, fact))])
        while self.measure(text) > length - 30:
            num_sentences = num_sentences * (length - 40) // self.measure(text)
            text = documents.document(rng, num_sentences, [(depth, facts.state(rng, TRAIN, fact))])
        question = Message("user", facts.ask(rng, TRAIN, fact))
        return Probe((Message("user", text), Message("assistant", documents.READ), question), fact.answer)

    def interview(self, rng: random.Random, length: int, num_facts: int) -> Interview:
        """Facts with held-out values, then other turns up to `length` tokens, then a question for each."""
        told = self._facts(rng, num_facts)
        messages: list[Message] = []
        for fact in told:
            messages += [Message("user", facts.state(rng, TRAIN, fact)), _echo(fact)]
        used = sum(self.measure(opened(message.role, message.text)) + 2 for message in messages)
        messages += self._distraction(rng, told, length - used - 40)
        questions = tuple((Message("user", facts.ask(rng, TRAIN, fact)), fact.answer) for fact in told)
        return Interview(tuple(messages), questions)

    def needles(self, rng: random.Random, length: int, depths: tuple[float, ...]) -> Interview:
        """Five digits at each of some depths of one document of `length` tokens, and a question for each."""
        secrets = rng.sample(words.SECRETS, len(depths))
        told = [
            Fact(KIND_BY_NAME["secret"], secret, "".join(rng.choice("0123456789") for _ in range(5)))
            for secret in secrets
        ]
        places = [(depth, facts.state(rng, TRAIN, fact)) for depth, fact in zip(depths, told, strict=True)]
        num_sentences = length // 8
        text = documents.document(rng, num_sentences, places)
        while self.measure(text) > length - 30:
            num_sentences = num_sentences * (length - 40) // self.measure(text)
            text = documents.document(rng, num_sentences, places)
        questions = tuple((Message("user", facts.ask(rng, TRAIN, fact)), fact.answer) for fact in told)
        return Interview((Message("user", text), Message("assistant", documents.READ)), questions)

    def unknown(self, rng: random.Random) -> Probe:
        """A question for something that was not told, after three other facts."""
        *told, asked = self._facts(rng, 4)
        messages = [
            message
            for fact in told
            for message in (Message("user", facts.state(rng, TRAIN, fact)), _echo(fact))
        ]
        return Probe((*messages, Message("user", facts.ask(rng, HELD_OUT, asked))), asked.unknown_answer)

    def update(self, rng: random.Random) -> Probe:
        """A fact, other turns, the same fact with a new value, other turns, the question."""
        (old,) = self._facts(rng, 1)
        new = old
        while new.value == old.value:
            new = facts.make_fact(rng, HELD_OUT, self.lexicon, old.kind, old.key)
        messages = [Message("user", facts.state(rng, HELD_OUT, old)), acknowledge(rng, old)]
        messages += self._distraction(rng, (old,), 60)
        messages += [
            Message("user", facts.state(rng, HELD_OUT, new, update=True)),
            acknowledge(rng, new, update=True),
        ]
        messages += self._distraction(rng, (old,), 60)
        return Probe((*messages, Message("user", facts.ask(rng, HELD_OUT, new))), new.answer)

    def in_passing(self, rng: random.Random, question: str, answer: str) -> Probe:
        """A question at the start of a conversation, or as often after some other turns."""
        before = self._distraction(rng, (), 80) if rng.random() < 0.5 else []
        return Probe((*before, Message("user", question)), answer)

    def exercise(self, exercise: Exercise) -> Probe:
        """A skill, at the start of a conversation."""
        return Probe((Message("user", exercise.request),), exercise.answer)
