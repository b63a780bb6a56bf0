"""The kinds of facts a person can tell: how each is stated, asked for and answered."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from kvchat.starter import words
from kvchat.starter.phrases import phrases
from kvchat.starter.split import Split
from kvchat.starter.words import Lexicon

ValueMaker = Callable[[random.Random, Split, Lexicon], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class FactKind:
    """One kind of fact; `{k}` is its key (what it is about) and `{v}` its value.

    Args:
        keys: Pool of keys; empty if a person has only one such fact.
        made_up_keys: Share of keys that are made-up words instead.
        clauses: Ways to state it, without a capital letter and without the full stop.
        questions: Whole questions for it.
        asked: Embedded questions ("what my name is") for the shared question frames.
        canonical: The answer.
        unknown: What was not told, for "You have not told me ... yet."
        greeting: A special acknowledgement, empty if there is none.
    """

    name: str
    value: ValueMaker
    clauses: tuple[str, ...]
    questions: tuple[str, ...]
    asked: tuple[str, ...]
    canonical: str
    unknown: str
    keys: tuple[str, ...] = ()
    made_up_keys: float = 0.0
    greeting: str = ""
    weight: float = 1.0


def _pooled(pool: tuple[str, ...], pool_share: float = 0.5) -> ValueMaker:
    return lambda rng, split, lexicon: lexicon.pooled(rng, split, pool, pool_share)


def _number(low: int, high: int) -> ValueMaker:
    return lambda rng, split, lexicon: words.number(rng, split, low, high)


def _job(rng: random.Random, split: Split, lexicon: Lexicon) -> str:
    job = lexicon.pooled(rng, split, words.JOBS, 0.7)
    return ("an " if job[0] in "aeiou" else "a ") + job


def _day(rng: random.Random, split: Split, lexicon: Lexicon) -> str:
    if rng.random() < 0.5:
        return lexicon.pooled(rng, split, words.DAYS, 1.0)
    return words.date(rng, split)


def _items(rng: random.Random, split: Split, lexicon: Lexicon) -> str:
    items = words.word_list(rng, split, lexicon, rng.randint(2, 4))
    return ", ".join(items[:-1]) + " and " + items[-1]


# Questions for anything that has a noun phrase; the kinds below list them with their own noun.
_ASK_NOUN = phrases(
    "What is {n}? | Tell me {n}. | What was {n} again? | I forgot {n}. What is it? | Remind me of {n}. | Do "
    "you remember {n}? | {n}? | Give me {n}. | What did I say about {n}? | I need {n}. | What do you know "
    "about {n}? | Can you tell me {n}? | Do you know {n}?"
)


def _ask(noun: str, own: str) -> tuple[str, ...]:
    asked = tuple(frame.replace("{n}", noun) for frame in _ASK_NOUN)
    return tuple(dict.fromkeys(form[0].upper() + form[1:] for form in (*phrases(own), *asked)))


KINDS = (
    FactKind(
        name="name",
        value=_pooled(words.NAMES, 0.6),
        clauses=phrases(
            "my name is {v} | I am called {v} | people call me {v} | you can call me {v} | I am {v} | I go "
            "by {v} | my friends call me {v} | my first name is {v}"
        ),
        questions=_ask(
            "my name",
            "What is my name? | Who am I? | What am I called? | How do people call me? | Which name did I "
            "give you? | What do my friends call me?",
        ),
        asked=phrases("what my name is | who I am | what I am called"),
        canonical="Your name is {v}.",
        unknown="your name",
        greeting="Nice to meet you, {v}!",
        weight=2.0,
    ),
    FactKind(
        name="favourite",
        keys=words.CATEGORIES,
        made_up_keys=0.1,
        value=_pooled((*words.COLOURS, *words.ITEMS), 0.5),
        clauses=phrases(
            "my favourite {k} is {v} | the {k} I like best is {v} | I like {v} best of every {k} | {v} is "
            "my favourite {k} | the best {k} for me is {v} | of every {k}, I prefer {v}"
        ),
        questions=_ask(
            "my favourite {k}",
            "What is my favourite {k}? | Which {k} do I like best? | Which {k} is my favourite? | Which {k} "
            "do I prefer? | What {k} do I like most?",
        ),
        asked=phrases("what my favourite {k} is | which {k} I like best | which {k} I prefer"),
        canonical="Your favourite {k} is {v}.",
        unknown="your favourite {k}",
        weight=2.0,
    ),
    FactKind(
        name="companion",
        keys=words.COMPANIONS,
        made_up_keys=0.1,
        value=_pooled(words.NAMES, 0.5),
        clauses=phrases(
            "my {k} is called {v} | the name of my {k} is {v} | I have a {k} called {v} | my {k} is named "
            "{v} | {v} is the name of my {k} | I call my {k} {v}"
        ),
        questions=_ask(
            "the name of my {k}",
            "What is my {k} called? | What is the name of my {k}? | How is my {k} called? | What do I call "
            "my {k}? | Which name does my {k} have?",
        ),
        asked=phrases("what my {k} is called | the name of my {k}"),
        canonical="Your {k} is called {v}.",
        unknown="what your {k} is called",
        weight=1.5,
    ),
    FactKind(
        name="callable",
        keys=words.CALLABLES,
        made_up_keys=0.15,
        value=_pooled(words.NAMES, 0.5),
        clauses=phrases(
            "the {k} is called {v} | call the {k} {v} | the name of the {k} is {v} | we call the {k} {v} | "
            "the {k} has the name {v} | the {k} is named {v}"
        ),
        questions=_ask(
            "the name of the {k}",
            "What is the {k} called? | What is the name of the {k}? | How do we call the {k}? | Which name "
            "does the {k} have?",
        ),
        asked=phrases("what the {k} is called | the name of the {k}"),
        canonical="The {k} is called {v}.",
        unknown="what the {k} is called",
    ),
    FactKind(
        name="secret",
        keys=words.SECRETS,
        made_up_keys=0.1,
        value=words.code,
        clauses=phrases(
            "the {k} is {v} | my {k} is {v} | {v} is the {k} | use {v} as the {k} | I set the {k} to {v} | "
            "the {k} should be {v} | we chose {v} as the {k}"
        ),
        questions=_ask(
            "the {k}",
            "What is the {k}? | Which {k} did I give you? | What is my {k}? | What did I set the {k} to? | "
            "Which {k} should I use?",
        ),
        asked=phrases("what the {k} is | the {k} | which {k} to use"),
        canonical="The {k} is {v}.",
        unknown="the {k}",
        weight=2.0,
    ),
    FactKind(
        name="lock",
        keys=words.LOCKS,
        made_up_keys=0.15,
        value=words.code,
        clauses=phrases(
            "the code for the {k} is {v} | the {k} opens with {v} | use {v} to open the {k} | {v} opens the "
            "{k} | the {k} has the code {v} | to open the {k}, type {v}"
        ),
        questions=_ask(
            "the code for the {k}",
            "What is the code for the {k}? | How do I open the {k}? | Which code opens the {k}? | What "
            "opens the {k}? | Which code does the {k} have?",
        ),
        asked=phrases("how to open the {k} | the code for the {k} | which code opens the {k}"),
        canonical="The code for the {k} is {v}.",
        unknown="the code for the {k}",
        weight=1.5,
    ),
    FactKind(
        name="where",
        keys=words.THINGS,
        made_up_keys=0.15,
        value=_pooled(words.PLACES, 0.7),
        clauses=phrases(
            "the {k} is in the {v} | I put the {k} in the {v} | I left the {k} in the {v} | you can find "
            "the {k} in the {v} | the {k} lies in the {v} | the {v} is where I keep the {k} | I keep the "
            "{k} in the {v}"
        ),
        questions=_ask(
            "the place of the {k}",
            "Where is the {k}? | Where did I put the {k}? | Where can I find the {k}? | In which place is "
            "the {k}? | Where do I keep the {k}? | I am looking for the {k}. Where is it? | Where did I "
            "leave the {k}?",
        ),
        asked=phrases("where the {k} is | where I put the {k} | where to find the {k}"),
        canonical="The {k} is in the {v}.",
        unknown="where the {k} is",
        weight=1.5,
    ),
    FactKind(
        name="state",
        keys=words.STATEFUL,
        made_up_keys=0.1,
        value=_pooled(words.ADJECTIVES, 0.8),
        clauses=phrases(
            "the {k} looks {v} | today the {k} looks {v} | the {k} looks {v} at the moment | as far as I "
            "can see the {k} looks {v} | I noticed that the {k} looks {v}"
        ),
        questions=_ask(
            "the state of the {k}",
            "How does the {k} look? | In which state is the {k}? | What does the {k} look like? | How is "
            "the {k}?",
        ),
        asked=phrases("how the {k} looks | what the {k} looks like"),
        canonical="The {k} looks {v}.",
        unknown="how the {k} looks",
        weight=0.7,
    ),
    FactKind(
        name="event",
        keys=words.EVENTS,
        made_up_keys=0.1,
        value=_day,
        clauses=phrases(
            "the {k} is on {v} | the {k} takes place on {v} | we have a {k} on {v} | on {v} there is a {k} "
            "| the {k} was set for {v} | the date of the {k} is {v}"
        ),
        questions=_ask(
            "the date of the {k}",
            "When is the {k}? | On which day is the {k}? | When does the {k} take place? | What day is the "
            "{k}? | When do we have the {k}?",
        ),
        asked=phrases("when the {k} is | on which day the {k} is"),
        canonical="The {k} is on {v}.",
        unknown="when the {k} is",
    ),
    FactKind(
        name="count",
        keys=words.COUNTABLES,
        made_up_keys=0.0,
        value=_number(2, 60),
        clauses=phrases(
            "I have {v} {k} | I own {v} {k} | there are {v} {k} in my home | the number of my {k} is {v} | "
            "I counted my {k} and there are {v}"
        ),
        questions=_ask(
            "the number of my {k}",
            "How many {k} do I have? | How many {k} do I own? | How many {k} are mine? | How many {k} are "
            "there in my home?",
        ),
        asked=phrases("how many {k} I have | how many {k} I own"),
        canonical="You have {v} {k}.",
        unknown="how many {k} you have",
    ),
    FactKind(
        name="home",
        value=_pooled(words.CITIES, 0.6),
        clauses=phrases(
            "I live in {v} | my home is in {v} | I am from {v} | I moved to {v} | my home town is {v} | my "
            "house is in {v}"
        ),
        questions=_ask(
            "my home town",
            "Where do I live? | Which city do I live in? | Where is my home? | Where am I from? | In which "
            "city is my home? | Which town do I live in?",
        ),
        asked=phrases("where I live | which city I live in | where my home is"),
        canonical="You live in {v}.",
        unknown="where you live",
    ),
    FactKind(
        name="job",
        value=_job,
        clauses=phrases(
            "I work as {v} | I am {v} by profession | I earn my money as {v} | my job is to be {v} | I have "
            "a job as {v} | I am employed as {v}"
        ),
        questions=_ask(
            "my job",
            "What is my job? | What do I work as? | What is my profession? | What do I do for a living? | "
            "Which job do I have?",
        ),
        asked=phrases("what my job is | what I work as | what I do for a living"),
        canonical="You work as {v}.",
        unknown="what you work as",
    ),
    FactKind(
        name="colour",
        keys=words.OWNED,
        made_up_keys=0.1,
        value=_pooled(words.COLOURS, 0.85),
        clauses=phrases(
            "my {k} is {v} | the colour of my {k} is {v} | I painted my {k} {v} | I have a {v} {k} | my {k} "
            "has the colour {v}"
        ),
        questions=_ask(
            "the colour of my {k}",
            "What colour is my {k}? | Which colour does my {k} have? | What is the colour of my {k}? | "
            "Which colour is my {k}?",
        ),
        asked=phrases("what colour my {k} is | which colour my {k} has"),
        canonical="Your {k} is {v}.",
        unknown="what colour your {k} is",
    ),
    FactKind(
        name="dislike",
        value=_pooled(words.PLURAL_DISLIKES, 0.6),
        clauses=phrases(
            "I do not like {v} | I hate {v} | I cannot stand {v} | I dislike {v} | I try to avoid {v} | "
            "what I do not like is {v}"
        ),
        questions=_ask(
            "the thing I do not like",
            "What do I not like? | What do I dislike? | What do I hate? | Which thing can I not stand? | "
            "What do I try to avoid?",
        ),
        asked=phrases("what I do not like | what I dislike | what I hate"),
        canonical="You do not like {v}.",
        unknown="what you do not like",
        weight=0.7,
    ),
    FactKind(
        name="list",
        keys=words.LISTS,
        made_up_keys=0.1,
        value=_items,
        clauses=phrases(
            "my {k} list is {v} | my {k} list contains {v} | on my {k} list there are {v} | I need {v} on "
            "my {k} list | please put {v} on my {k} list"
        ),
        questions=_ask(
            "my {k} list",
            "What is on my {k} list? | What does my {k} list contain? | Which things are on my {k} list? | "
            "What did I put on my {k} list?",
        ),
        asked=phrases("what is on my {k} list | what my {k} list contains"),
        canonical="On your {k} list: {v}.",
        unknown="what is on your {k} list",
    ),
    FactKind(
        name="value",
        made_up_keys=1.0,
        keys=words.ITEMS,
        value=words.code,
        clauses=phrases(
            "the value of {k} is {v} | {k} = {v} | {k} is equal to {v} | set {k} to {v} | {k} has the value "
            "{v} | let {k} be {v}"
        ),
        questions=_ask(
            "the value of {k}",
            "What is the value of {k}? | Which value does {k} have? | What is {k} equal to? | What did I "
            "set {k} to?",
        ),
        asked=phrases("the value of {k} | which value {k} has | what {k} is equal to"),
        canonical="The value of {k} is {v}.",
        unknown="the value of {k}",
        weight=1.5,
    ),
    FactKind(
        name="age",
        value=_number(5, 99),
        clauses=phrases(
            "I am {v} years old | my age is {v} | I turned {v} this year | I have been alive for {v} years"
        ),
        questions=_ask(
            "my age",
            "How old am I? | What is my age? | How many years old am I?",
        ),
        asked=phrases("how old I am | my age"),
        canonical="You are {v} years old.",
        unknown="how old you are",
        weight=0.7,
    ),
    FactKind(
        name="instrument",
        value=_pooled(words.INSTRUMENTS, 0.7),
        clauses=phrases(
            "I play the {v} | I can play the {v} | I am learning to play the {v} | my instrument is the {v}"
        ),
        questions=_ask(
            "my instrument",
            "Which instrument do I play? | What do I play? | What instrument is mine?",
        ),
        asked=phrases("which instrument I play | what I play"),
        canonical="You play the {v}.",
        unknown="which instrument you play",
        weight=0.7,
    ),
    FactKind(
        name="language",
        value=_pooled(words.LANGUAGES, 0.7),
        clauses=phrases(
            "I speak {v} | I can speak {v} | the language I speak is {v} | I grew up speaking {v}"
        ),
        questions=_ask(
            "the language I speak",
            "Which language do I speak? | What language do I speak? | What do I speak?",
        ),
        asked=phrases("which language I speak | what I speak"),
        canonical="You speak {v}.",
        unknown="which language you speak",
        weight=0.7,
    ),
)
KIND_BY_NAME = {kind.name: kind for kind in KINDS}
