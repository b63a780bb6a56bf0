"""What the evaluation asks: contexts with the one right answer, on held-out phrasings and values."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from kvchat.starter import documents, facts, faq, outside, phrasing, skills, smalltalk, words
from kvchat.starter.conversation import Conversation, Message, Mix, acknowledge
from kvchat.starter.facts import Fact
from kvchat.starter.skills import Exercise
from kvchat.starter.split import Split
from kvchat.starter.words import Lexicon

DISTRACTION = Mix(fact=35, query=0, faq=20, small=12, outside=13, skill=20, document=0, update_share=0.0)
TRAIN, HELD_OUT = Split.TRAIN, Split.HELD_OUT
Measure = Callable[[str], int]


@dataclass(frozen=True, slots=True)
class Probe:
    """A context that ends with a question, and the answer greedy decoding must give token for token."""

    context: tuple[Message, ...]
    answer: str


@dataclass(frozen=True, slots=True)
class Category:
    """A row of the evaluation; `probes` makes `num_probes` of them from a seed."""

    name: str
    probes: Callable[[random.Random], Iterator[Probe]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """How many probes each category gets."""

    recall: int
    passkey: int
    other: int
    recall_lengths: tuple[int, ...]
    passkey_lengths: tuple[int, ...]


FULL = Sizes(
    recall=48,
    passkey=12,
    other=80,
    recall_lengths=(256, 512, 1024, 2048, 4096),
    passkey_lengths=(1024, 2048, 4096),
)
QUICK = Sizes(recall=16, passkey=4, other=24, recall_lengths=(256, 512, 1024), passkey_lengths=(1024,))


def _silent(fact: Fact) -> Message:
    del fact
    return Message("assistant", "OK, I will remember that.")


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
            num_tokens -= sum(self.measure(message.text) + 2 for message in turn)
        return messages

    def _facts(self, rng: random.Random, number: int) -> tuple[Fact, ...]:
        chosen: dict[tuple[str, str], Fact] = {}
        while len(chosen) < number:
            fact = facts.make_fact(rng, HELD_OUT, self.lexicon, facts.pick_kind(rng))
            chosen[fact.kind.name, fact.key] = fact
        return tuple(chosen.values())

    def recall(self, rng: random.Random, forms: Split, length: int, echo: bool) -> Probe:
        """Three facts, then other turns up to `length` tokens, then a question for one of the three."""
        told = self._facts(rng, 3)
        messages: list[Message] = []
        for fact in told:
            messages += [
                Message("user", facts.state(rng, forms, fact)),
                _echo(fact) if echo else _silent(fact),
            ]
        used = sum(self.measure(message.text) + 2 for message in messages)
        messages += self._distraction(rng, told, length - used - 40)
        fact = rng.choice(told)
        return Probe((*messages, Message("user", facts.ask(rng, forms, fact))), fact.answer)

    def passkey(self, rng: random.Random, length: int, depth: float) -> Probe:
        """Five digits in a document of `length` tokens."""
        digits = "".join(rng.choice("0123456789") for _ in range(5))
        fact = Fact(facts.KIND_BY_NAME["secret"], rng.choice(words.SECRETS), digits)
        num_sentences = (length - 60) // 12
        text = documents.document(rng, num_sentences, [(depth, facts.state(rng, TRAIN, fact))])
        while self.measure(text) > length - 30:
            num_sentences = num_sentences * (length - 40) // self.measure(text)
            text = documents.document(rng, num_sentences, [(depth, facts.state(rng, TRAIN, fact))])
        question = Message("user", facts.ask(rng, TRAIN, fact))
        return Probe((Message("user", text), Message("assistant", documents.READ), question), fact.answer)

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

    def _courtesies(self, rng: random.Random, split: Split) -> Iterator[Probe]:
        for intent in smalltalk.INTENTS:
            for form in smalltalk.intent_forms(intent, split):
                yield self.in_passing(rng, form.replace("{x}", ""), intent.reply)

    def _faq_own(self, rng: random.Random, split: Split) -> Iterator[Probe]:
        for topic in faq.TOPICS:
            for form in phrasing.topic_forms(topic, split):
                yield self.in_passing(rng, form, topic.answer)

    def _faq_wrapped(self, rng: random.Random, number: int) -> Iterator[Probe]:
        for _ in range(number):
            topic = rng.choice(faq.TOPICS)
            question = phrasing.wrap(rng, rng.choice(phrasing.topic_forms(topic, TRAIN)), HELD_OUT)
            yield self.in_passing(rng, question, topic.answer)

    def _faq_templates(self, rng: random.Random, number: int) -> Iterator[Probe]:
        topics = [topic for topic in faq.TOPICS if topic.nouns]
        for _ in range(number):
            topic = rng.choice(topics)
            question = phrasing.fill(rng.choice(phrasing.noun_templates(HELD_OUT)), rng.choice(topic.nouns))
            yield self.in_passing(rng, question, topic.answer)

    def _many(
        self, number: int, make: Callable[[random.Random], Probe]
    ) -> Callable[[random.Random], Iterator[Probe]]:
        return lambda rng: (make(rng) for _ in range(number))

    def _skill(
        self, number: int, make: Callable[[random.Random], Exercise]
    ) -> Callable[[random.Random], Iterator[Probe]]:
        return lambda rng: (self.exercise(make(rng)) for _ in range(number))

    def _recall_categories(self, sizes: Sizes) -> Iterator[Category]:
        columns = (
            ("trained phrasings, echoed", TRAIN, True),
            ("held-out phrasings, echoed", HELD_OUT, True),
            ("held-out phrasings, said once", HELD_OUT, False),
        )
        for label, forms, echo in columns:
            for length in sizes.recall_lengths:
                make = lambda rng, forms=forms, length=length, echo=echo: self.recall(
                    rng, forms, length, echo
                )
                yield Category(f"recall {length}, {label}", self._many(sizes.recall, make))

    def _passkey_categories(self, sizes: Sizes) -> Iterator[Category]:
        for length in sizes.passkey_lengths:
            for depth in (0.1, 0.5, 0.9):
                make = lambda rng, length=length, depth=depth: self.passkey(rng, length, depth)  # noqa: E731
                yield Category(f"passkey {length}, depth {depth}", self._many(sizes.passkey, make))

    def _chat_categories(self, sizes: Sizes) -> Iterator[Category]:
        lexicon = self.lexicon
        yield Category("FAQ, trained forms", lambda rng: self._faq_own(rng, TRAIN))
        yield Category("FAQ, held-out forms", lambda rng: self._faq_own(rng, HELD_OUT))
        yield Category("FAQ, held-out wrappers", lambda rng: self._faq_wrapped(rng, sizes.other))
        yield Category("FAQ, held-out templates", lambda rng: self._faq_templates(rng, sizes.other))
        yield Category("small talk, trained forms", lambda rng: self._courtesies(rng, TRAIN))
        yield Category("small talk, held-out forms", lambda rng: self._courtesies(rng, HELD_OUT))
        for split in (TRAIN, HELD_OUT):
            make = lambda rng, split=split: self.in_passing(  # noqa: E731
                rng, outside.ask_outside(rng, lexicon, split), outside.FALLBACK
            )
            label = "trained" if split is TRAIN else "held-out"
            yield Category(f"outside the domain, {label} templates", self._many(sizes.other, make))
        yield Category("unknown fact, held-out questions", self._many(sizes.other, self.unknown))
        yield Category("updated fact, held-out phrasings", self._many(sizes.other, self.update))

    def _skill_categories(self, sizes: Sizes) -> Iterator[Category]:
        lexicon, number = self.lexicon, sizes.other // 2
        for forms, label in ((TRAIN, "trained form"), (HELD_OUT, "held-out form")):
            skill: dict[str, Callable[[random.Random], Exercise]] = {
                "repeat 1-8 words": lambda rng, forms=forms: skills.repeat(rng, forms, HELD_OUT, lexicon),
                "first item": lambda rng, forms=forms: skills.pick_item(
                    rng, forms, HELD_OUT, lexicon, last=False
                ),
                "last item": lambda rng, forms=forms: skills.pick_item(
                    rng, forms, HELD_OUT, lexicon, last=True
                ),
                "count up to 60": lambda rng, forms=forms: skills.count_up(rng, forms),
                "count down": lambda rng, forms=forms: skills.count_down(rng, forms),
                "say a word several times": lambda rng, forms=forms: skills.times(
                    rng, forms, HELD_OUT, lexicon
                ),
            }
            for name, make in skill.items():
                yield Category(f"{name}, {label}", self._skill(number, make))
        for highest in (9, 20, 99):
            make = lambda rng, highest=highest: skills.add(rng, TRAIN, HELD_OUT, highest)  # noqa: E731
            yield Category(f"add 0-{highest}, trained form", self._skill(number, make))

    def categories(self, sizes: Sizes) -> Iterator[Category]:
        """Yield all rows of the evaluation."""
        yield from self._recall_categories(sizes)
        yield from self._passkey_categories(sizes)
        yield from self._chat_categories(sizes)
        yield from self._skill_categories(sizes)
