"""Pools of words that facts, lists and out-of-domain questions are filled with."""

from __future__ import annotations

import random
from dataclasses import dataclass

from tools.starter.split import Split, is_held_out_value, values_of


def _pool(text: str) -> tuple[str, ...]:
    return tuple(text.split())


NAMES = _pool(
    "Ana Ben Carla David Elena Felix Greta Hugo Ines Jonas Karim Laura Marco Nina Oscar Paula Quentin Rosa "
    "Samuel Tara Ulrich Vera Walter Xenia Yusuf Zoe Adam Bianca Cyril Dora Emil Frida Gustav Hanna Ivan "
    "Julia Klaus Lena Milan Nora Otto Petra Ravi Sofia Tomas Ursula Viktor Wendy Yara Zeno Alice Bruno "
    "Clara Dmitri Esther Fatima George Helga Igor Judith Kenji Lucia Magnus Noor Olga Pedro Rita Sven Thea "
    "Umar Violet Wim Yoko Anton Berta Rex Luna Milo Bella Rocky Daisy Simba Coco Max Ruby Toby Nala Oreo "
    "Pepper Shadow Biscuit Mary John Peter Sarah"
)
COLOURS = _pool(
    "red blue green yellow orange purple pink brown black white grey teal violet indigo crimson beige "
    "maroon navy turquoise gold silver olive coral lilac scarlet amber ivory cyan magenta mint"
)
PLACES = _pool(
    "kitchen garage attic cellar garden office hall bathroom bedroom shed drawer cupboard basket box "
    "library barn workshop balcony corridor pantry studio closet trunk safe bag basement lobby museum "
    "station harbour stable greenhouse chapel tower tent"
)
CITIES = _pool(
    "Paris Berlin Madrid Rome Lisbon Vienna Prague Oslo Dublin Athens Warsaw Budapest Helsinki Zurich "
    "Geneva Porto Seville Naples Milan Lyon Hamburg Munich Krakow Riga Tallinn Vilnius Sofia Cairo Tokyo "
    "Kyoto Osaka Seoul Delhi Mumbai Lima Quito Bogota Toronto Boston Chicago Denver Austin Sydney Perth "
    "Nairobi Tunis Accra Dakar"
)
ADJECTIVES = _pool(
    "open closed broken clean dirty full empty warm cold wet dry ready late safe locked free busy quiet "
    "loud new old heavy light soft hard sharp bright dark hot frozen"
)
DAYS = _pool("Monday Tuesday Wednesday Thursday Friday Saturday Sunday")
MONTHS = _pool("January February March April May June July August September October November December")
ITEMS = _pool(
    "apples bread milk eggs cheese rice tea coffee butter sugar salt pepper honey bananas lemons onions "
    "carrots potatoes tomatoes beans flour oil soap paper candles matches batteries nails rope tape glue "
    "paint socks shirts shoes books pens maps cups plates spoons forks knives towels blankets pillows lamps "
    "flowers seeds oranges grapes pears plums nuts dates figs olives pasta soup fish chicken beef yogurt "
    "juice water cookies chocolate"
)
JOBS = _pool(
    "baker teacher nurse farmer painter pilot driver doctor lawyer plumber gardener writer singer dancer "
    "cook tailor carpenter librarian banker chemist translator postman sailor judge barber builder "
    "photographer waiter"
)
INSTRUMENTS = _pool(
    "piano guitar violin flute cello trumpet drum harp clarinet banjo saxophone accordion oboe viola"
)
LANGUAGES = _pool(
    "English French German Spanish Italian Dutch Polish Greek Arabic Hindi Turkish Finnish Swedish Danish "
    "Russian Japanese Korean Swahili Latin Czech"
)
THINGS = _pool(
    "lamp key ladder bicycle umbrella hammer ticket wallet camera radio clock mirror vase chair table "
    "carpet guitar suitcase jacket scarf hat ring letter parcel notebook helmet drill bucket broom kettle "
    "phone charger tent kite puzzle telescope compass flute passport map"
)
STATEFUL = _pool(
    "door window gate bridge road shop pool oven printer boiler heater elevator fridge tank street tram"
)
CATEGORIES = _pool(
    "colour food fruit animal drink book film song city season sport game flower tree bird dessert "
    "vegetable cheese band painter writer poet dance hobby language instrument number day month subject"
)
COMPANIONS = _pool(
    "dog cat horse parrot rabbit hamster sister brother mother father uncle aunt cousin boss teacher "
    "neighbour friend doctor boat daughter son"
)
CALLABLES = _pool("dog cat robot boat car ship plant project team server printer goldfish puppy kitten pony")
SECRETS = _pool(
    "password code passkey number keyword pin passphrase token secret login combination ticket invoice "
    "order account reference serial room seat locker badge licence receipt parcel extension"
)
LOCKS = _pool(
    "gate door safe garage office locker bike alarm cellar vault house shed gym archive lab studio barn lift"
)
EVENTS = _pool(
    "meeting party concert exam wedding lecture match dinner flight workshop interview picnic lesson "
    "festival game parade auction trial dance show"
)
COUNTABLES = _pool(
    "cats dogs books plants chairs cars bikes brothers sisters cousins hats lamps maps coins stamps keys "
    "cups horses shirts pens tents clocks boxes candles phones"
)
OWNED = _pool(
    "car bike house jacket bag hat door boat scarf phone sofa cup tent kite desk umbrella wallet coat shirt"
)
LISTS = _pool("shopping packing reading guest gift party travel cooking cleaning music")
PLURAL_DISLIKES = _pool(
    "mushrooms spiders rain onions traffic noise olives mornings snakes queues fog winter garlic mice"
)

_ONSETS = _pool("b c d f g h k l m n p r s t v w z br cl dr fl gr kr pl st tr sh th")
_VOWELS = _pool("a e i o u a e i o ai ou ea")
SIGNS = ("-", "_", "/", "'", "+")
_CODAS = ("", "", "", "", "n", "r", "l", "s", "m", "x", "t")


@dataclass(frozen=True, slots=True, kw_only=True)
class Lexicon:
    """Where random words come from.

    Args:
        pieces: Lower-case letter strings of the tokenizer's vocabulary; empty before a tokenizer exists.
            Words glued from them can only be copied: two equal ones are unlikely.
        openings: Those that begin a capitalised word, in lower case; half of these words take one if any.
        sign_share: Share of the glued words with a sign between their parts. Without such words some
            pieces only ever stand before letters, and the model would learn to put letters there.
    """

    pieces: tuple[str, ...] = ()
    openings: tuple[str, ...] = ()
    sign_share: float = 0.0

    def _raw_word(self, rng: random.Random) -> str:
        if self.pieces and rng.random() < 0.75:
            parts = rng.choices(self.pieces, k=rng.choice((1, 2, 2, 2, 3)))
            if self.sign_share and rng.random() < self.sign_share:
                parts = [parts[0], rng.choice(SIGNS), *(parts[1:] or rng.choices(self.pieces))]
            return "".join(parts)
        return "".join(
            rng.choice(_ONSETS) + rng.choice(_VOWELS) + rng.choice(_CODAS) for _ in range(rng.randint(1, 3))
        )

    def word(self, rng: random.Random, split: Split) -> str:
        """Return a made-up lower-case word of `split`."""
        while True:
            word = self._raw_word(rng)
            if len(word) >= 3 and is_held_out_value(word) == (split is Split.HELD_OUT):
                return word

    def pooled(self, rng: random.Random, split: Split, pool: tuple[str, ...], pool_share: float = 0.5) -> str:
        """Return a word of `pool` with probability `pool_share`, else a made-up one."""
        if rng.random() < pool_share:
            values = values_of(pool, split)
            if values:
                return rng.choice(values)
        if not pool[0][0].isupper():
            return self.word(rng, split)
        if self.openings and rng.random() < 0.5:
            return self._opened(rng, split).capitalize()
        return self.word(rng, split).capitalize()

    def _opened(self, rng: random.Random, split: Split) -> str:
        while True:
            rest = rng.choice(("", rng.choice(self.pieces), rng.choice(self.pieces)))
            word = rng.choice(self.openings) + rest
            if len(word) >= 3 and is_held_out_value(word) == (split is Split.HELD_OUT):
                return word


def code(rng: random.Random, split: Split, lexicon: Lexicon) -> str:
    """Return a password-like value: mostly 3 to 6 digits, sometimes letters and digits, sometimes a word."""
    while True:
        kind = rng.random()
        if kind < 0.7:
            value = "".join(rng.choice("0123456789") for _ in range(rng.randint(3, 6)))
        elif kind < 0.85:
            value = "".join(rng.choice("ABCDEFGHJKLMNPQRSTUVWXYZ23456789") for _ in range(rng.randint(3, 5)))
        else:
            return lexicon.word(rng, split)
        if is_held_out_value(value) == (split is Split.HELD_OUT):
            return value


def number(rng: random.Random, split: Split, low: int, high: int) -> str:
    """Return a number in [low, high] of `split`, written in digits."""
    values = values_of(tuple(str(n) for n in range(low, high + 1)), split)
    return rng.choice(values)


def date(rng: random.Random, split: Split) -> str:
    """Return a day of the year such as "14 March" of `split`."""
    while True:
        value = f"{rng.randint(1, 28)} {rng.choice(MONTHS)}"
        if is_held_out_value(value) == (split is Split.HELD_OUT):
            return value


def word_list(
    rng: random.Random, split: Split, lexicon: Lexicon, length: int, pool_share: float | None = None
) -> list[str]:
    """Return `length` different words; in training more of them are made up, unless `pool_share` is given."""
    words: list[str] = []
    if pool_share is None:
        pool_share = 0.2 if split is Split.TRAIN else 0.6
    while len(words) < length:
        pool = ITEMS if rng.random() < 0.85 else rng.choice((NAMES, CITIES, THINGS, COLOURS))
        word = lexicon.pooled(rng, split, pool, pool_share)
        if word not in words:
            words.append(word)
    return words
