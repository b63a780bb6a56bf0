"""Small skills: repeat, count, add, times, first and last."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from tools.starter import words
from tools.starter.phrases import phrases
from tools.starter.split import Split, forms_of, is_held_out_value
from tools.starter.words import Lexicon

NUM_HELD_OUT_FORMS = 2
REPEATED = (1, 1, 2, 2, 3, 3, 4, 5, 6, 7, 8)

NUMBER_WORDS = phrases(
    "zero | one | two | three | four | five | six | seven | eight | nine | ten | eleven | twelve | "
    "thirteen | fourteen | fifteen | sixteen | seventeen | eighteen | nineteen | twenty"
)

REPEAT = phrases(
    "Repeat: {l}. | Repeat after me: {l}. | Say: {l}. | Please repeat: {l}. | Say this again: {l}. | Copy "
    "this: {l}. | Write: {l}. | Say after me: {l}. | Can you repeat this: {l}. | Repeat these words: {l}. | "
    "Please say: {l}. | Repeat the following: {l}. | Echo: {l}. | Repeat the list: {l}. | Say the words "
    "{l}. | Repeat {l}. | Please copy this: {l}. | Now say: {l}. | Now repeat: {l}. | Repeat this list: "
    "{l}. | Say this list: {l}. | Write this: {l}. | Please write: {l}. | Write down: {l}. | Read this "
    "back: {l}. | Read back to me: {l}. | Copy the words {l}. | Repeat the words {l}. | Copy: {l}. | Can "
    "you say: {l}? | Can you copy: {l}? | Can you echo: {l}? | Could you repeat: {l}? | I say: {l}. Repeat "
    "it. | I want you to say: {l}. | I want you to repeat: {l}. | Repeat what I say: {l}. | Say what I say: "
    "{l}. | Echo these words: {l}. | Write these words: {l}. | Copy the list {l}. | Give me back: {l}. | "
    "Once more: {l}. | Repeat exactly: {l}. | Let me hear: {l}. | Repeat this for me: {l}."
)
COUNT_TO = phrases(
    "Count to {b}. | Please count to {b}. | Can you count to {b}? | Count up to {b}. | Count until {b}. | "
    "Could you count to {b}? | Count to {b} for me. | Start counting and stop at {b}. | I want you to count "
    "to {b}. | Now count to {b}. | Count all the way to {b}. | Please count up to {b}. | Count for me up to "
    "{b}. | Count to {b}, please. | Can you count up to {b}? | Let me hear you count to {b}. | I would like "
    "you to count to {b}. | Try to count to {b}. | Count, but stop at {b}. | Count as far as {b}. | Say all "
    "numbers up to {b}. | Give me the numbers up to {b}. | Count the numbers up to {b}. | Do you know how "
    "to count to {b}? | Go on and count to {b}. | Show me that you can count to {b}. | Write the numbers up "
    "to {b}."
)
COUNT_FROM = phrases(
    "Count from {a} to {b}. | Please count from {a} to {b}. | Can you count from {a} to {b}? | Count up "
    "from {a} to {b}. | List the numbers from {a} to {b}. | Give me the numbers from {a} to {b}. | Write "
    "the numbers from {a} to {b}. | Start at {a} and count to {b}. | Say the numbers from {a} to {b}. | "
    "Name all numbers from {a} to {b}. | Could you count from {a} to {b}? | Count the numbers from {a} to "
    "{b}. | Start counting at {a} and stop at {b}. | All numbers from {a} to {b}, please. | Which numbers "
    "are there from {a} to {b}? | Tell me the numbers from {a} to {b}. | Begin at {a} and count to {b}. | "
    "Count on from {a} to {b}. | Now count from {a} to {b}."
)
COUNT_DOWN = phrases(
    "Count down from {b}. | Count backwards from {b}. | Please count down from {b}. | Can you count down "
    "from {b}? | Start at {b} and count down. | Count back from {b}. | Count down from {b} to 1. | I want "
    "you to count down from {b}. | Do a countdown from {b}. | Give me a countdown from {b}. | Countdown "
    "from {b}. | Count down, starting at {b}. | Count in reverse from {b}. | Now count down from {b}. | Say "
    "the numbers from {b} down to 1. | Write the numbers from {b} down to 1. | Begin at {b} and count down "
    "to 1. | Go down from {b} to 1. | Go backwards from {b}. | Can you count backwards from {b}?"
)
ADD = phrases(
    "What is {a} plus {b}? | What is {a} + {b}? | {a} + {b} | Add {a} and {b}. | How much is {a} plus {b}? "
    "| How much is {a} + {b}? | Calculate {a} + {b}. | What is the sum of {a} and {b}? | Please add {a} and "
    "{b}. | {a} plus {b}? | Tell me the sum of {a} and {b}. | Compute {a} plus {b}. | What do {a} and {b} "
    "make? | Can you add {a} and {b}? | What is {a} and {b}? | {a}+{b} | {a}+{b}? | {a} + {b}? | Sum {a} "
    "and {b}. | Please compute {a} + {b}. | Please calculate {a} plus {b}. | Tell me what {a} plus {b} is. "
    "| How much do {a} and {b} make? | Give me the sum of {a} and {b}. | Work out {a} + {b}. | Do you know "
    "what {a} plus {b} is? | {a} and {b} is? | What do you get if you add {a} and {b}?"
)
TIMES = phrases(
    "Say {w} {n} times. | Repeat {w} {n} times. | Write {w} {n} times. | Please say {w} {n} times. | Can "
    "you say {w} {n} times? | Say the word {w} {n} times. | Write the word {w} {n} times. | Repeat the word "
    "{w} {n} times. | I want to read {w} {n} times. | Give me {w} {n} times. | Say {n} times {w}. | Write "
    "{n} times {w}. | Repeat {n} times: {w}. | Say {w}, and say it {n} times. | Please write {w} {n} times. "
    "| Can you repeat {w} {n} times? | Could you say {w} {n} times? | I want you to say {w} {n} times. | "
    "Now say {w} {n} times. | Print {w} {n} times. | Print the word {w} {n} times. | Echo {w} {n} times. | "
    "Copy {w} {n} times. | Copy the word {w} {n} times. | Let me hear {w} {n} times. | {w}, {n} times. | "
    "{n} times {w}, please. | Write down {w} {n} times."
)
FIRST = phrases(
    "What is the first word of this list: {l}? | Which word comes first: {l}? | Tell me the first of these: "
    "{l}. | What is the first item: {l}? | Which one is first: {l}? | Name the first word of {l}. | First "
    "item of this list: {l}. | Which item is the first one here: {l}? | Which word is first: {l}? | Which "
    "word is the first one: {l}? | What comes first: {l}? | What is first here: {l}? | What is the first of "
    "these words: {l}? | Give me the first of these: {l}. | Say the first word: {l}. | Say the first of "
    "these words: {l}. | Tell me the first word of this list: {l}. | Name the first one: {l}. | Name the "
    "first item: {l}. | The first one, please: {l}. | Here is a list: {l}. What is first? | Here is a list: "
    "{l}. Which one comes first? | {l}. Which one is the first? | With which word does this list begin: "
    "{l}? | What does this list start with: {l}?"
)
LAST = phrases(
    "What is the last word of this list: {l}? | Which word comes last: {l}? | Tell me the last of these: "
    "{l}. | What is the last item: {l}? | Which one is last: {l}? | Name the last word of {l}. | Last item "
    "of this list: {l}. | Which item is the last one here: {l}? | Which word is last: {l}? | What comes "
    "last: {l}? | What is last here: {l}? | What is the last of these words: {l}? | Give me the last word: "
    "{l}. | Give me the last of these: {l}. | Say the last word: {l}. | Say the last of these words: {l}. | "
    "Name the last one: {l}. | The last one, please: {l}. | Pick the last: {l}. | Here is a list: {l}. What "
    "is last? | {l}. Which one is the last? | Look at this list: {l}. Tell me the last word. | With which "
    "word does this list end: {l}? | What does this list end with: {l}?"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Exercise:
    """A request and its only right answer; `sought` is the part of it that must be copied."""

    name: str
    request: str
    answer: str
    sought: str = ""


def _form(rng: random.Random, forms: tuple[str, ...], split: Split) -> str:
    return rng.choice(forms_of(forms, split, NUM_HELD_OUT_FORMS))


def repeat(
    rng: random.Random, forms: Split, values: Split, lexicon: Lexicon, length: int | None = None
) -> Exercise:
    """Repeat a list of words; the answer opens with "OK:", since a copy cannot start a message well."""
    num_items = length if length is not None else rng.choice(REPEATED)
    separator = ", " if rng.random() < 0.7 else " "
    items = separator.join(words.word_list(rng, values, lexicon, num_items))
    request = _form(rng, REPEAT, forms).replace("{l}", items)
    return Exercise(name="repeat", request=request, answer=f"OK: {items}.", sought=items)


def _is_held_out_pair(a: int, b: int, name: str) -> bool:
    return is_held_out_value(f"{name} {a} {b}")


def _numeral(rng: random.Random, number: int) -> str:
    return NUMBER_WORDS[number] if number < len(NUMBER_WORDS) and rng.random() < 0.5 else str(number)


def count_up(rng: random.Random, forms: Split, longest: int = 60) -> Exercise:
    """Count from 1 or from another number."""
    if rng.random() < 0.6:
        start, end = 1, _end_of_count(rng, longest)
        request = _form(rng, COUNT_TO, forms).replace("{b}", _numeral(rng, end))
    else:
        start = 1 if rng.random() < 0.5 else rng.randint(1, 50)
        end = start + _end_of_count(rng, longest if start == 1 else 20) - 1
        request = _form(rng, COUNT_FROM, forms).replace("{a}", str(start)).replace("{b}", str(end))
    return Exercise(
        name="count", request=request, answer=", ".join(str(n) for n in range(start, end + 1)) + "."
    )


def _end_of_count(rng: random.Random, longest: int) -> int:
    if rng.random() < 0.7:
        return rng.randint(2, 20)
    return rng.choice((30, 40, 50, 60)) if longest >= 60 and rng.random() < 0.5 else rng.randint(20, longest)


def count_down(rng: random.Random, forms: Split) -> Exercise:
    """Count down to 1."""
    start = rng.choice((3, 5, 10, 10, 20, rng.randint(2, 20)))
    request = _form(rng, COUNT_DOWN, forms).replace("{b}", _numeral(rng, start))
    return Exercise(
        name="count down", request=request, answer=", ".join(str(n) for n in range(start, 0, -1)) + "."
    )


def add(rng: random.Random, forms: Split, values: Split, highest: int | None = None) -> Exercise:
    """Add two numbers; pairs whose hash says so are held out."""
    limit = highest if highest is not None else rng.choice((9, 9, 20, 20, 20, 20, 99, 99))
    while True:
        a, b = rng.randint(0, limit), rng.randint(0, limit)
        # Below ten there are only a hundred pairs, so that all of them are for training.
        if limit < 10 or _is_held_out_pair(a, b, "add") == (values is Split.HELD_OUT):
            break
    request = _form(rng, ADD, forms).replace("{a}", str(a)).replace("{b}", str(b))
    return Exercise(name="add", request=request, answer=f"The answer is {a + b}.")


def times(rng: random.Random, forms: Split, values: Split, lexicon: Lexicon) -> Exercise:
    """Say one word several times."""
    word = lexicon.pooled(rng, values, words.ITEMS, 0.2 if values is Split.TRAIN else 0.5)
    num_times = rng.randint(2, 8)
    numeral = NUMBER_WORDS[num_times] if rng.random() < 0.3 else str(num_times)
    request = _form(rng, TIMES, forms).replace("{w}", word).replace("{n}", numeral)
    return Exercise(name="times", request=request, answer="OK: " + ", ".join([word] * num_times) + ".")


def pick_item(
    rng: random.Random, forms: Split, values: Split, lexicon: Lexicon, last: bool, list_opens: bool = False
) -> Exercise:
    """Name the first or the last word of a list; `list_opens` wants the list at the start of the request."""
    items = words.word_list(rng, values, lexicon, rng.randint(2, 6))
    wordings = forms_of(LAST if last else FIRST, forms, NUM_HELD_OUT_FORMS)
    if list_opens:
        wordings = tuple(wording for wording in wordings if wording.startswith("{l}"))
    request = rng.choice(wordings).replace("{l}", ", ".join(items))
    which = "last" if last else "first"
    item = items[-1 if last else 0]
    return Exercise(name=which, request=request, answer=f"The {which} one is {item}.", sought=item)


@dataclass(frozen=True, slots=True, kw_only=True)
class Exercises:
    """Relative frequencies of the skills in training.

    Args:
        repeated: Numbers of words to repeat, all as likely as each other.
        list_opens_share: Of requests for the first word, those whose list opens the message. There the word
            has no space before it and so other tokens than in the answer, which takes more practice.
    """

    repeat: float = 34
    count_up: float = 16
    count_down: float = 5
    add: float = 20
    times: float = 8
    first: float = 8
    last: float = 9
    repeated: tuple[int, ...] = REPEATED
    list_opens_share: float = 0.4


def exercise(rng: random.Random, lexicon: Lexicon, exercises: Exercises) -> Exercise:
    """Return a training exercise of any kind."""
    train = Split.TRAIN
    makers: dict[Callable[[], Exercise], float] = {
        lambda: repeat(rng, train, train, lexicon, rng.choice(exercises.repeated)): exercises.repeat,
        lambda: count_up(rng, train): exercises.count_up,
        lambda: count_down(rng, train): exercises.count_down,
        lambda: add(rng, train, train): exercises.add,
        lambda: times(rng, train, train, lexicon): exercises.times,
        lambda: pick_item(
            rng, train, train, lexicon, False, rng.random() < exercises.list_opens_share
        ): exercises.first,
        lambda: pick_item(rng, train, train, lexicon, last=True): exercises.last,
    }
    return rng.choices(list(makers), list(makers.values()))[0]()
