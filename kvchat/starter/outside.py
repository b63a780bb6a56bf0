"""Questions that the model was not made for, and the honest reply to all of them."""

from __future__ import annotations

import random

from kvchat.starter import words
from kvchat.starter.phrases import phrases
from kvchat.starter.phrasing import fill, noun_templates
from kvchat.starter.split import Split, forms_of
from kvchat.starter.words import Lexicon

FALLBACK = (
    "I am only a tiny starter model and cannot help with that. Start kvchat with --model to talk to a larger "
    "model, or ask me about KV caches."
)
NUM_HELD_OUT_TEMPLATES = 20

# {w} a common word, {N} a name, {C} a city, {d} a number.
TEMPLATES = phrases(
    "Tell me a story. | Tell me a story about {w}. | Write a story about {N}. | Tell me a joke. | Tell me a "
    "joke about {w}. | Write a poem. | Write a poem about {w}. | Sing a song. | Sing a song about {w}. | "
    "What is the weather like today? | What is the weather in {C}? | Will it rain tomorrow? | Is it cold in "
    "{C}? | What is the capital of {C}? | Where is {C}? | How far is {C}? | How do I get to {C}? | Who "
    "lives in {C}? | How many people live in {C}? | What can I see in {C}? | Which hotel in {C} is good? | "
    "Book a flight to {C}. | Who is {N}? | Who was {N}? | When was {N} born? | How old is {N}? | Do you "
    "know {N}? | Is {N} famous? | What did {N} write? | What did {N} invent? | Call {N}. | Send a message "
    "to {N}. | Write a letter to {N}. | Who won the match? | Who is the president? | Who is the king of "
    "{C}? | Who wrote the book about {w}? | What time is it? | What day is it today? | What year is it? | "
    "What is the date today? | How do I cook {w}? | How do I make {w}? | Give me a recipe for {w}. | Where "
    "can I buy {w}? | How much does {w} cost? | Is {w} healthy? | Why is {w} expensive? | Do you like {w}? "
    "| How is {w} made? | What colour is {w}? | Why do people like {w}? | Is {w} better than {w2}? | "
    "Compare {w} and {w2}. | What is the meaning of life? | Why is the sky blue? | How far away is the "
    "moon? | What is the largest animal? | How deep is the sea? | How high is the highest mountain? | What "
    "is the speed of light? | How old is the earth? | Why do birds fly? | How do fish sleep? | What do cats "
    "eat? | How long do dogs live? | Do plants sleep? | Translate {w} into French. | How do you say {w} in "
    "German? | Spell {w}. | What rhymes with {w}? | Write a program that sorts {w}. | Write some code. | "
    "Write a Python function. | Fix my code. | Open the file {w}. | Search the web for {w}. | Play some "
    "music. | Play a game with me. | Show me a picture of {w}. | Draw {w}. | Turn on the light. | Set an "
    "alarm for {d} o'clock. | Order a pizza. | Buy {w} for me. | Solve this equation. | What is the square "
    "root of {d}? | What is {d} divided by {d2}? | Is {d} a prime number? | Do my homework. | Write an "
    "essay about {w}. | Write an email to my boss. | Summarise the news. | What is in the news? | What "
    "happened in {d}? | Who will win the election? | What should I wear today? | What should I eat? | Which "
    "film should I watch? | Recommend a book about {w}. | Give me advice about {w}. | Am I ill? | I have a "
    "headache. | My back hurts. | How do I lose weight? | How do I become rich? | Should I buy {w}? | What "
    "is love? | Is there a god? | What is your favourite film? | What is your favourite {w}? | Where do you "
    "live? | How old are you? | Do you have children? | Are you married? | What do you eat? | I like {w}, "
    "and you? | What do you think about {w}? | What do you think of {N}? | Let us talk about {w}. | Tell me "
    "something about {C}. | Give me the history of {C}. | Which language do they speak in {C}? | How does "
    "{w} work? | Why does {w} exist? | Who invented {w}? | When was {w} discovered? | Where does {w} come "
    "from? | Can you {w}? | How do I repair a {w}? | How do I use a {w}? | How many {w} are there in {C}? | "
    "What is {w} used for? | Plan a trip to {C}. | What is the best {w}? | Name three kinds of {w}. | "
    "Invent a name for my {w}. | Guess my age. | Guess a number. | Make me laugh. | Tell me a secret. | "
    "Tell me something interesting. | What is the price of gold? | How is the traffic in {C}? | When does "
    "the train to {C} leave?"
)


def templates(split: Split) -> tuple[str, ...]:
    """Return the templates of `split`."""
    return forms_of(TEMPLATES, split, NUM_HELD_OUT_TEMPLATES)


def _fill_words(rng: random.Random, split: Split, lexicon: Lexicon, template: str) -> str:
    text = template.replace("{w2}", lexicon.pooled(rng, split, words.ITEMS, 0.7))
    text = text.replace("{w}", lexicon.pooled(rng, split, rng.choice((words.ITEMS, words.THINGS)), 0.7))
    text = text.replace("{N}", lexicon.pooled(rng, split, words.NAMES, 0.6))
    text = text.replace("{C}", lexicon.pooled(rng, split, words.CITIES, 0.7))
    text = text.replace("{d2}", words.number(rng, split, 2, 99))
    return text.replace("{d}", words.number(rng, split, 2, 2000))


def _strange_noun(rng: random.Random, lexicon: Lexicon) -> str:
    word = lexicon.pooled(rng, Split.TRAIN, rng.choice((words.ITEMS, words.THINGS, words.PLACES)), 0.5)
    return rng.choice(phrases("{} | a {} | the {} | my {} | the {} of {}")).format(
        word, lexicon.word(rng, Split.TRAIN)
    )


def ask_outside(rng: random.Random, lexicon: Lexicon, split: Split = Split.TRAIN) -> str:
    """Return a question outside the domain.

    In training a third uses the same templates as the FAQ with nouns that are no topic, so that the template
    alone cannot decide between an answer and the fallback.
    """
    if split is Split.TRAIN and rng.random() < 0.35:
        return fill(rng.choice(noun_templates(Split.TRAIN)), _strange_noun(rng, lexicon))
    return _fill_words(rng, split, lexicon, rng.choice(templates(split)))
