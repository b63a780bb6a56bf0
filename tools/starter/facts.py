"""What a person can tell the model about, how it is said, asked for and answered."""

from __future__ import annotations

import random
from dataclasses import dataclass

from tools.starter import phrasing
from tools.starter.fact_kind import FactKind
from tools.starter.fact_kinds import KINDS
from tools.starter.phrases import phrases
from tools.starter.split import Split, forms_of
from tools.starter.words import Lexicon

NUM_HELD_OUT_CLAUSES = 1
NUM_HELD_OUT_QUESTIONS = 2
NUM_HELD_OUT_FRAMES = 3
# Frames put around a clause; the empty one is the plainest and by far the most frequent.
STATEMENT_FRAMES = phrases(
    "{s} | Remember that {s} | Please remember that {s} | Note that {s} | Please note that {s} | Keep in "
    "mind that {s} | By the way, {s} | Just so you know, {s} | For your information, {s} | I want you to "
    "know that {s} | Remember this: {s} | Do not forget that {s} | You should know that {s} | One more "
    "thing: {s} | Let me tell you that {s} | I should mention that {s} | Please write down that {s} | For "
    "later: {s} | Also, {s} | You might want to know that {s} | I forgot to say that {s} | It is important "
    "that {s} | Here is something to remember: {s} | A fact: {s} | So, {s} | As you may know, {s} | I tell "
    "you that {s} | Listen, {s} | Here is a fact: {s} | Store this: {s} | Learn this: {s} | Another thing: "
    "{s} | Next, {s} | To begin with, {s} | Hey, {s} | Oh, {s} | In case you ask, {s} | I just want to say "
    "that {s} | Know that {s} | Make a note: {s} | {s}, please remember | {s}, by the way | Some news: {s} "
    "| Something else: {s} | It is true that {s} | Never forget that {s} | I hope you remember that {s}"
)
# An order cannot stand after "that"; these clauses are framed by a colon or a comma only.
_ORDERS = ("call ", "use ", "set ", "let ", "please ", "to open")
UPDATE_FRAMES = phrases(
    "Actually, {s} | Correction: {s} | I was wrong, {s} | Update: {s} | No, {s} | It has changed: {s} | "
    "Sorry, {s} | From now on {s} | Forget what I said: {s} | I made a mistake, {s} | {s} now | Please "
    "change that: {s} | That is no longer true: {s} | I have to correct myself, {s} | This is new: {s} | "
    "There was a change: {s} | In fact, {s} | Please update this: {s} | New information: {s} | I have to "
    "change that: {s} | As of today, {s} | Instead, {s} | Not any more: {s} | {s} from today on | Let me "
    "correct that: {s} | Replace what I said: {s} | {s} instead | Something has changed: {s} | Oh no, {s} | "
    "Starting today, {s}"
)
QUESTION_FRAMES = phrases(
    "Tell me {q}. | Do you remember {q}? | Can you tell me {q}? | I forgot {q}. | Remind me {q}. | Do you "
    "know {q}? | I would like to know {q}. | Did I tell you {q}? | Could you remind me {q}? | Please tell "
    "me {q}. | Let me know {q}. | I do not remember {q}. | Do you still know {q}? | Have I told you {q}? | "
    "Can you say {q}? | I want to know {q}. | Could you tell me {q} again? | Say {q}. | Please remind me "
    "{q}. | Try to remember {q}. | Now tell me {q}. | Please say {q} once more. | Do you recall {q}? | "
    "Would you know {q}? | I need to know {q}. | Let me hear {q}. | You should know {q}. | Let us see if "
    "you know {q}. | Check {q} for me. | Think back: {q}? | I wonder {q}. | Just tell me {q}. | I asked you "
    "to remember {q}. | Could you repeat {q}? | Are you able to tell me {q}? | Do you by chance know {q}? | "
    "You know {q}, right? | Look up {q}. | Find out {q}. | May I ask {q}? | Answer me: {q}?"
)
_WEIGHTS = tuple(kind.weight for kind in KINDS)


@dataclass(frozen=True, slots=True)
class Fact:
    """A kind of fact with its key and value filled in."""

    kind: FactKind
    key: str
    value: str

    @property
    def answer(self) -> str:
        """The sentence that answers a question for this fact."""
        return self.kind.canonical.format(k=self.key, v=self.value)

    @property
    def unknown_answer(self) -> str:
        """The sentence that says the fact was never told."""
        return f"You have not told me {self.kind.unknown.format(k=self.key)} yet."


def pick_kind(rng: random.Random) -> FactKind:
    """Return a kind of fact, the weightier ones more often."""
    return rng.choices(KINDS, _WEIGHTS)[0]


def make_fact(
    rng: random.Random, split: Split, lexicon: Lexicon, kind: FactKind, key: str | None = None
) -> Fact:
    """Return a fact of `kind` with a value of `split`; the key is drawn from training keys unless given."""
    if key is None:
        key = ""
        if kind.keys:
            key = lexicon.pooled(rng, Split.TRAIN, kind.keys, 1.0 - kind.made_up_keys)
    return Fact(kind, key, kind.value(rng, split, lexicon))


def _capitalised(text: str) -> str:
    return text[0].upper() + text[1:]


def state(rng: random.Random, split: Split, fact: Fact, update: bool = False) -> str:
    """Say `fact` in one of the phrasings of `split`, framed as a correction if `update`."""
    clause = rng.choice(forms_of(fact.kind.clauses, split, NUM_HELD_OUT_CLAUSES))
    frames = forms_of(UPDATE_FRAMES if update else STATEMENT_FRAMES, split, NUM_HELD_OUT_FRAMES)
    if clause.startswith(_ORDERS):
        frames = tuple(frame for frame in frames if not frame.endswith("that {s}")) or ("{s}",)
    frame = rng.choice(frames) if update or rng.random() < 0.5 else "{s}"
    # Capitalised and made noisy before it is filled, so that a value keeps its spelling wherever it stands.
    template = _capitalised(frame.replace("{s}", clause)) + "."
    return phrasing.noisy(rng, template, typos=0.0).format(k=fact.key, v=fact.value)


def _question_template(rng: random.Random, split: Split, kind: FactKind) -> str:
    if rng.random() < 0.65:
        return rng.choice(forms_of(kind.questions, split, NUM_HELD_OUT_QUESTIONS))
    frame = rng.choice(forms_of(QUESTION_FRAMES, split, NUM_HELD_OUT_FRAMES))
    return _capitalised(frame.replace("{q}", rng.choice(kind.asked)))


HELD_OUT_QUESTIONS = frozenset(
    phrasing.normal(question)
    for kind in KINDS
    for question in forms_of(kind.questions, Split.HELD_OUT, NUM_HELD_OUT_QUESTIONS)
)


def ask(rng: random.Random, split: Split, fact: Fact) -> str:
    """Ask for `fact` in one of the phrasings of `split`."""
    while True:
        template = _question_template(rng, split, fact.kind)
        # A frame of training and an embedded question can make up a held-out question.
        if split is Split.HELD_OUT or phrasing.normal(template) not in HELD_OUT_QUESTIONS:
            break
    if split is Split.TRAIN:
        if rng.random() < 0.08:
            template = phrasing.wrap(rng, template)
        template = phrasing.noisy(rng, template, typos=0.0)
    return template.format(k=fact.key)
