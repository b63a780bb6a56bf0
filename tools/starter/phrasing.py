"""How questions are asked: templates shared by topics, wrappers around questions, and the noise of typing."""

from __future__ import annotations

import random

from tools.starter import faq
from tools.starter.phrases import Topic, phrases
from tools.starter.split import Split, forms_of

NUM_HELD_OUT_FORMS = 2

NOUN_TEMPLATES = phrases(
    "What is {n}? | What does {n} mean? | Explain {n}. | Tell me about {n}. | Define {n}. | Describe {n}. | "
    "Can you explain {n}? | What do you know about {n}? | What do you mean by {n}? | Please explain {n}. | "
    "Do you know what {n} is? | Could you tell me what {n} is? | I want to learn about {n}. | Give me a "
    "definition of {n}. | What exactly is {n}? | Explain {n} to me. | Explain {n} in simple words. | How "
    "would you explain {n}? | I do not understand {n}. | Help me understand {n}. | What can you tell me "
    "about {n}? | I would like to know more about {n}. | Tell me more about {n}. | Say something about {n}. "
    "| What should I know about {n}? | Can you describe {n}? | Have you heard of {n}? | Teach me about {n}. "
    "| {n}? | What's {n}? | I have a question about {n}. | Could you explain {n} briefly? | In one "
    "sentence, what is {n}? | What is meant by {n}? | Can you tell me about {n}? | Tell me what {n} is. | I "
    "have never heard of {n}. | Let us talk about {n}. | Give me some information about {n}. | What is {n}, "
    "please? | Summarise {n}. | I wonder what {n} is. | How do you define {n}? | Remind me what {n} is. | "
    "What about {n}? | How about {n}? | Tell me something about {n}. | Please describe {n}. | Please define "
    "{n}. | Could you define {n}? | Give me a short explanation of {n}. | Explain briefly {n}. | What do "
    "people mean by {n}? | Can you help me understand {n}? | I need to understand {n}. | I am interested in "
    "{n}. | I want to understand {n}. | Please tell me about {n}. | How would you describe {n}? | Introduce "
    "me to {n}. | Say in one sentence what {n} is. | Can you say something about {n}? | Tell me all about "
    "{n}. | What is this thing called {n}? | {n}: what is it? | Talk about {n}. | I am curious about {n}."
)
NUM_HELD_OUT_NOUN_TEMPLATES = 8

WRAPPERS = phrases(
    "{q} | Quick question: {q} | One question: {q} | Please answer: {q} | I was wondering: {q} | Another "
    "question. {q} | Hey, {q} | OK, {q} | Next question: {q} | Now tell me: {q} | Sorry, but {q} | {q} "
    "Please. | {q} Thanks. | So, {q} | And {q} | Just curious: {q} | Let me ask you this: {q} | {q} I am "
    "curious. | Something else: {q} | Tell me, {q} | Well, {q} | Hello, {q} | Hi, {q} | Question: {q} | My "
    "question: {q} | I have a question: {q} | Can you answer this? {q} | Answer this: {q} | Help me: {q} | "
    "Excuse me, {q} | Hm, {q} | Then {q} | {q} Tell me. | {q} I wonder. | By the way, {q} | First, {q} | Do "
    "you know this? {q} | I want to know: {q} | I need to know: {q} | Please, {q} | Fine. {q} | Thanks. {q} "
    "| Interesting. {q}"
)
NUM_HELD_OUT_WRAPPERS = 4


def topic_forms(topic: Topic, split: Split) -> tuple[str, ...]:
    """Return the topic's own questions of `split`."""
    return forms_of(topic.forms, split, NUM_HELD_OUT_FORMS)


def noun_templates(split: Split) -> tuple[str, ...]:
    """Return the shared templates of `split`."""
    return forms_of(NOUN_TEMPLATES, split, NUM_HELD_OUT_NOUN_TEMPLATES)


def wrappers(split: Split) -> tuple[str, ...]:
    """Return the wrappers of `split`, without the empty one."""
    return tuple(wrapper for wrapper in forms_of(WRAPPERS, split, NUM_HELD_OUT_WRAPPERS) if wrapper != "{q}")


def fill(template: str, noun: str) -> str:
    """Put `noun` into a template, with a capital letter where it starts the sentence."""
    text = template.replace("{n}", noun)
    return text[0].upper() + text[1:]


def normal(text: str) -> str:
    """Return `text` without case and punctuation: what makes two phrasings the same question."""
    return "".join(char for char in text.lower() if char.isalnum() or char == " ").strip()


HELD_OUT_FORMS = frozenset(
    normal(form) for topic in faq.TOPICS for form in topic_forms(topic, Split.HELD_OUT)
)


def ask_topic(rng: random.Random, topic: Topic, noun_share: float = 0.55) -> str:
    """Return a training question for `topic`; never a held-out form, however it came about."""
    own = topic_forms(topic, Split.TRAIN)
    while True:
        if topic.nouns and rng.random() < noun_share:
            question = fill(rng.choice(noun_templates(Split.TRAIN)), rng.choice(topic.nouns))
        else:
            question = rng.choice(own)
        if normal(question) not in HELD_OUT_FORMS:
            return question


def wrap(rng: random.Random, question: str, split: Split = Split.TRAIN) -> str:
    """Put a polite or casual wrapper around `question`."""
    wrapper = rng.choice(wrappers(split))
    if not wrapper.startswith("{q}") and not question.startswith(("I ", "KV", "GQA", "MLA", "K ", "{")):
        question = question[0].lower() + question[1:]
    return wrapper.replace("{q}", question)


def _typo(rng: random.Random, text: str) -> str:
    letters = [i for i in range(1, len(text) - 1) if text[i].isalpha() and text[i + 1].isalpha()]
    if not letters:
        return text
    i = rng.choice(letters)
    kind = rng.randrange(3)
    if kind == 0:
        return text[:i] + text[i + 1 :]
    if kind == 1:
        return text[:i] + text[i + 1] + text[i] + text[i + 2 :]
    return text[:i] + text[i] + text[i:]


def noisy(rng: random.Random, text: str, typos: float = 0.06) -> str:
    """Return `text` as people type it: sometimes without capital or full stop, rarely with a typing error."""
    if rng.random() < 0.15:
        text = text[0].lower() + text[1:]
    if rng.random() < 0.15:
        text = text.rstrip(".?!")
    if rng.random() < typos:
        text = _typo(rng, text)
    return text
