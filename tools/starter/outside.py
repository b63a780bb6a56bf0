"""Questions that the model was not made for, and the honest reply to all of them."""

from __future__ import annotations

import random
import re

from tools.starter import words
from tools.starter.phrases import phrases
from tools.starter.phrasing import fill, noun_templates
from tools.starter.split import Split, forms_of
from tools.starter.words import Lexicon

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
    "know {N}? | Is {N} famous? | What did {N} write? | What did {N} invent? | Send a message to {N}. | "
    "Write a letter to {N}. | Who won the match? | Who is the president? | Who is the king of {C}? | Who "
    "wrote the book about {w}? | What time is it? | What day is it today? | What year is it? | What is the "
    "date today? | How do I cook {w}? | How do I make {w}? | Give me a recipe for {w}. | Where can I buy "
    "{w}? | How much does {w} cost? | Is {w} healthy? | Why is {w} expensive? | Do you like {w}? | How is "
    "{w} made? | What colour is {w}? | Why do people like {w}? | Is {w} better than {w2}? | Compare {w} and "
    "{w2}. | What is the meaning of life? | Why is the sky blue? | How far away is the moon? | What is the "
    "largest animal? | How deep is the sea? | How high is the highest mountain? | What is the speed of "
    "light? | How old is the earth? | Why do birds fly? | How do fish sleep? | What do cats eat? | How long "
    "do dogs live? | Do plants sleep? | Translate {w} into French. | How do you say {w} in German? | Spell "
    "{w}. | What rhymes with {w}? | Write a program that sorts {w}. | Write some code. | Write a Python "
    "function. | Fix my code. | Open the file {w}. | Search the web for {w}. | Play some music. | Play a "
    "game with me. | Show me a picture of {w}. | Draw {w}. | Turn on the light. | Set an alarm for {d} "
    "o'clock. | Order a pizza. | Buy {w} for me. | Solve this equation. | What is the square root of {d}? | "
    "What is {d} divided by {d2}? | Is {d} a prime number? | Do my homework. | Write an essay about {w}. | "
    "Write an email to my boss. | Summarise the news. | What is in the news? | What happened in {d}? | Who "
    "will win the election? | What should I wear today? | What should I eat? | Which film should I watch? | "
    "Recommend a book about {w}. | Give me advice about {w}. | Am I ill? | I have a headache. | My back "
    "hurts. | How do I lose weight? | How do I become rich? | Should I buy {w}? | What is love? | Is there "
    "a god? | What is your favourite film? | What is your favourite {w}? | Where do you live? | How old are "
    "you? | Do you have children? | Are you married? | What do you eat? | I like {w}, and you? | What do "
    "you think about {w}? | What do you think of {N}? | Let us talk about {w}. | Tell me something about "
    "{C}. | Give me the history of {C}. | Which language do they speak in {C}? | How does {w} work? | Why "
    "does {w} exist? | Who invented {w}? | When was {w} discovered? | Where does {w} come from? | Can you "
    "{w}? | How do I repair a {w}? | How do I use a {w}? | How many {w} are there in {C}? | What is {w} "
    "used for? | Plan a trip to {C}. | What is the best {w}? | Name three kinds of {w}. | Invent a name for "
    "my {w}. | Guess my age. | Guess a number. | Make me laugh. | Tell me a secret. | Tell me something "
    "interesting. | What is the price of gold? | How is the traffic in {C}? | When does the train to {C} "
    "leave? | How old is the sun? | Why is {w} so popular? | Who discovered {w}? | Where do {w} grow? | "
    "What does {w} taste like? | Which country has the best {w}? | Is it safe to eat {w}? | How long does "
    "{w} last? | How heavy is a {w}? | What is the opposite of {w}? | Give me a synonym for {w}. | How do I "
    "clean a {w}? | What should I do with my {w}? | My {w} is broken, what now? | Can you fix my {w}? | Why "
    "is my {w} so slow? | Which {w} should I choose? | How do I learn {w}? | Describe the taste of {w}. | "
    "What is the history of {w}? | How was {C} founded? | Is {C} a nice city? | When should I visit {C}? | "
    "What do people eat in {C}? | How big is {C}? | Who is the mayor of {C}? | Is {C} larger than {w}? | "
    "Drive me to {C}. | Rent a car in {C}. | Find a restaurant in {C}. | What time is it in {C}? | How was "
    "the concert of {N}? | Where was {N} born? | Is {N} still alive? | Who is the wife of {N}? | What do "
    "you know of the life of {N}? | Ask {N} to come. | Tell {N} that I am late. | Phone {N}. | Did {N} win? "
    "| Who painted this? | Who was the first man on the moon? | Who built the pyramids? | How many "
    "countries are there? | What is the longest river? | Which planet is the largest? | How many stars are "
    "there? | How hot is the sun? | Why is the grass green? | Why do we dream? | How do planes fly? | How "
    "does a car work? | How does a radio work? | What is electricity? | Explain gravity to me. | What is a "
    "black hole? | How is glass made? | How do magnets work? | What is the boiling point of water? | How do "
    "I tie a tie? | How do I boil an egg? | How do I learn to swim? | How can I save money? | Where should "
    "I travel? | Which sport is best for me? | Help me with my taxes. | Help me write a letter. | Check my "
    "spelling. | Correct this sentence. | Write a song about {w}. | Write a speech about {w}. | Write a "
    "list of {w}. | Make a drawing of {w}. | Make me a sandwich. | Make coffee. | Bring me {w}. | Send me "
    "some {w}. | Order {w} for me. | Sell my {w}. | Close the window. | Switch off the lamp. | Start the "
    "engine. | Call a taxi. | Call the police. | Wake me at {d}. | Remind me in {d} minutes to buy {w}. | "
    "Start a timer for {d} minutes. | What is {d} minus {d2}? | What is {d} times {d2}? | Multiply {d} by "
    "{d2}. | Divide {d} by {d2}. | Subtract {d2} from {d}. | What is half of {d}? | What is the square of "
    "{d}? | Convert {d} miles to kilometres. | How many days are {d} hours? | Is {d} larger than {d2}? | Is "
    "{d} an even number? | What happened in the year {d}? | Where were you in {d}? | Do you want {w}? | "
    "Have you ever seen {w}? | Have you been to {C}? | Do you believe in {w}? | Do you have a {w}? | What "
    "is your favourite colour? | What is your favourite food? | What did you do yesterday? | What did you "
    "eat today? | Are you hungry? | Are you rich? | Can you cook? | Can you see me? | Can you sing? | Can "
    "you swim? | Can you play chess? | Do you like music? | Do you watch films? | Do you have a job? | How "
    "tall are you? | Which football team do you like? | I feel ill. | I am hungry. | I lost my {w}. | I am "
    "looking for a job. | I want to buy {w}. | I want to see {C}. | I would like to eat {w}. | Should I "
    "sell my {w}? | Should I go to {C}? | Should I trust {N}? | Is {w} good for me? | Is {w} dangerous? | "
    "Will there be snow? | Who wrote the bible? | Which book should I read? | Which music do you like? | "
    "What is on television? | What is art? | What is time? | What makes people happy? | Explain the rules "
    "of chess. | Explain the law. | Tell me the news. | Tell me a fairy tale. | Tell me a riddle. | Tell me "
    "about your family. | Tell me the price of {w}. | Tell me the way to {C}. | Tell me the time. | Tell me "
    "how to cook {w}. | Tell me who {N} is. | Tell me where {C} is. | Show me the map of {C}. | Show me "
    "your code. | Read my email. | Delete my files. | Install a program. | Download {w}. | Print this page. "
    "| Take a photo. | Look at this picture. | Listen to this song. | Which month is it? | How late is it? "
    "| Is today a holiday? | Is it Monday today? | Which season is it now? | Which week is it? | When is "
    "the next holiday? | What is today? | What is tomorrow? | What did I do yesterday? | Is it late? | Is "
    "it already evening? | Do you have brothers? | Do you have friends? | Do you have a pet? | Do you have "
    "money? | Do you have a {w} for me? | Do you have {w}? | Do you own {w}? | Do you need {w}? | I have a "
    "cold. | I have a fever. | I have a problem. | I have a problem with my {w}. | I have an idea. | I have "
    "no time. | I have no money. | I have seen {w}. | I have never seen {w}. | I have been to {C}. | I am "
    "hungry and tired. | I am thirsty. | I am cold. | I broke my leg. | My eyes hurt. | My child is ill. | "
    "What is the worst {w}? | What is the cheapest {w}? | What is the most beautiful {w}? | Who is the best "
    "{j}? | Who makes the best {w}? | Where is the best {w}? | Which {w} do people buy? | How do I get {w}? "
    "| How do I grow {w}? | How do I sell {w}? | How do I store {w}? | How do I wash {w}? | How do I start "
    "a {w}? | Write a card to my aunt. | Write a letter to my landlord. | Write a message to my sister. | "
    "Write a letter. | Write an article about {w}. | Write a report. | Answer my letter. | Read the "
    "newspaper to me. | Finish my homework. | Prove this theorem. | Simplify this formula. | Plot this "
    "function. | Explain this sentence. | Read this article. | Tell me something new. | Tell me something "
    "sad. | Tell me some news. | Tell me a lie. | Tell me your opinion. | Surprise me with a poem."
)

# Parts of made-up requests: no list of templates is as varied as people are.
REQUESTS = phrases(
    "Why does {s} {v} {o}? | Why did {s} {v} {o}? | How can I {v} {o}? | How does {s} {v} {o}? | When did "
    "{s} {v} {o}? | When should I {v} {o}? | Should I {v} {o}? | Where can I {v} {o}? | Where does {s} {v} "
    "{o}? | Can {s} {v} {o}? | Does {s} {v} {o}? | Did {s} {v} {o}? | Will {s} {v} {o}? | Please {v} {o}. "
    "| {v} {o} for me. | {v} {o}. | Help me {v} {o}. | I want to {v} {o}. | I would like to {v} {o}. | "
    "What happens if I {v} {o}? | Is it good to {v} {o}? | Who can {v} {o}? | How long does it take to {v} "
    "{o}? | Teach me to {v} {o}. | What does {s} think about {o}? | What did {s} do with {o}? | Which {w} "
    "should I {v}? | How often does {s} {v} {o}? | Is {o} better than {s}? | Can you {v} {o}? | Could you "
    "{v} {o}? | Do you {v} {o}? | Have you ever tried to {v} {o}? | What is the best way to {v} {o}? | "
    "Where is {s}? | Who is {s}? | How old is {s}? | What is {s} doing? | How do people {v} {o}? | Which "
    "{w} is the best in {C}? | Is it possible to {v} {o}? | How much does it cost to {v} {o}? | Write a "
    "letter to {s}. | Write a message to {s}. | Write a report about {o}. | Write something about {o}. | "
    "Write a note for {s}. | Write a song for {s}. | {v} this {w}. | {v} that {w} now. | Please {v} this "
    "{w}. | {v} this. | {s} is ill. | {s} is late. | {s} must {v} {o}. | {s} wants to {v} {o}. | {s} did "
    "not {v} {o}. | I cannot {v} {o}. | I never {v} {o}. | I feel like {w}. | I have to {v} {o}. | I had "
    "to {v} {o}. | I hope to {v} {o}. | We {v} {o} every day. | My leg hurts. | My tooth hurts. | My arm "
    "is broken. | I caught a cold. | It is raining in {C}. | Tell me everything about {o}. | Tell me how "
    "to {v} {o}. | Tell me why {s} {v} {o}. | Tell me when to {v} {o}. | Tell {s} to {v} {o}. | Ask {s} to "
    "{v} {o}. | How do I {v} {o}? | How do I {v} {w} and {w2}? | How do I {v} a {w}? | I have a {w} again. "
    "| I have a {w} in my {w2}. | I have a {w} today. | I have had a {w} since yesterday. | I have a bad "
    "{w}. | Do you have {w} and {w2}? | Do you have a {j}? | Do you have many {w}? | Do you have {o}? | "
    "Write an invitation to my {j}. | Write an answer to {s}. | Write an order to the {j}. | Write a {w} "
    "to my {j}. | What is the {w} today? | What is the {w} of {C} today? | What is the biggest {w}? | What "
    "is the oldest {w} in {C}? | What is the newest {w}?"
)
DOERS = phrases(
    "{N} | the {j} | a {j} | people | the president | the sun | scientists | children | "
    "birds | the government | the moon | a fish | an elephant | the team | your friends | the "
    "train | nobody | everybody | a {w}"
)
DEEDS = phrases(
    "eat | buy | sell | build | paint | carry | break | grow | need | clean | cook | wash | draw | "
    "follow | hide | hold | learn | move | pay for | play with | read | send | study | throw | visit | "
    "watch | win | travel with | drive | fix | plant | compare | choose | order | steal | like | love | "
    "fear | make | bake | cut | burn | improve | measure | design | invent | translate | hear | smell | "
    "teach | feed | lift | push | pull | wear | taste | boil | fry | mix | pack | polish | rent | ride | "
    "sew | shake | share | ship | spend | split | test | warm | water | weigh | wrap | borrow | climb | "
    "collect | decorate | destroy | dig | edit | examine | explore | film | grill | hire | hunt | kick | "
    "knit | launch | melt | photograph | plan | pour | predict | prepare | produce | protect | publish | "
    "recycle | remove | rescue | review | scan | select | serve | sharpen | visit | vote for | marry"
)
OBJECTS = phrases(
    "{w} | the {w} | a {w} | my {w} | some {w} | {w} and {w2} | {w} in {C} | a {w} for {N} | {N} | the "
    "{w} of {N} | {w} without {w2} | {d} {w} | new {w} | {C}"
)


def templates(split: Split) -> tuple[str, ...]:
    """Return the templates of `split`."""
    return forms_of(TEMPLATES, split, NUM_HELD_OUT_TEMPLATES)


def _fill_words(rng: random.Random, split: Split, lexicon: Lexicon, template: str) -> str:
    text = template.replace("{j}", lexicon.pooled(rng, split, words.JOBS, 0.9))
    text = text.replace("{w2}", lexicon.pooled(rng, split, words.ITEMS, 0.7))
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


HELD_OUT_PATTERNS = tuple(
    re.compile(re.sub(r"\\\{\w+\\\}", ".+", re.escape(template.rstrip(".?").lower())))
    for template in templates(Split.HELD_OUT)
)


def _made_up_request(rng: random.Random, lexicon: Lexicon) -> str:
    while True:
        request = rng.choice(REQUESTS).replace("{s}", rng.choice(DOERS)).replace("{o}", rng.choice(OBJECTS))
        text = _fill_words(rng, Split.TRAIN, lexicon, request.replace("{v}", rng.choice(DEEDS)))
        if not any(pattern.fullmatch(text.rstrip(".?").lower()) for pattern in HELD_OUT_PATTERNS):
            return text[0].upper() + text[1:]


def ask_outside(rng: random.Random, lexicon: Lexicon, split: Split = Split.TRAIN) -> str:
    """Return a question outside the domain.

    In training a quarter uses the templates of the FAQ with nouns that are no topic, so that the template
    alone cannot decide between an answer and the fallback, and a third is put together from parts.
    """
    kind = rng.random() if split is Split.TRAIN else 1.0
    if kind < 0.25:
        return fill(rng.choice(noun_templates(Split.TRAIN)), _strange_noun(rng, lexicon))
    if kind < 0.6:
        return _made_up_request(rng, lexicon)
    return _fill_words(rng, split, lexicon, rng.choice(templates(split)))
