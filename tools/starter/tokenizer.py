"""The tokenizer: byte-level BPE with 2560 entries, single digits and five special tokens."""

from __future__ import annotations

import itertools

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from tools.starter import corpus

VOCABULARY_SIZE = 2560
SPECIAL_TOKENS = ("<|pad|>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>")
PAD_ID, END_ID = 0, 1
ROLE_IDS = {"system": 2, "user": 3, "assistant": 4}
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|' + message['role'] + '|>' }}"
    "{% if message['role'] == 'user' %}{{ ' ' }}{% endif %}"
    "{{ message['content'] + '<|end|>' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


def opened(role: str, text: str) -> str:
    """Return a message's text as the template writes it: a user's has a space before it.

    So its first word consists of the same tokens as everywhere else, and what was learned of it holds.
    """
    return f" {text}" if role == "user" else text


def train_tokenizer(num_turns: int = 30000, seed: int = 0) -> Tokenizer:
    """Train the tokenizer on turns of the corpus and on its word pools; pure."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY_SIZE,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    # The fixed words count several times, so that a rare one still becomes a single token.
    fixed = itertools.chain.from_iterable(itertools.repeat(tuple(corpus.vocabulary()), 10))
    tokenizer.train_from_iterator(itertools.chain(corpus.texts(num_turns, seed), fixed), trainer)
    return tokenizer


def letter_pieces(tokenizer: Tokenizer) -> tuple[str, ...]:
    """Return the entries that are lower-case letters only, for gluing random words."""
    pieces = {token.removeprefix("Ġ") for token in tokenizer.get_vocab()}
    return tuple(sorted(piece for piece in pieces if piece.isascii() and piece.isalpha() and piece.islower()))


def word_openings(tokenizer: Tokenizer) -> tuple[str, ...]:
    """Return the entries that begin a capitalised word, in lower case."""
    openings = {token[1:] for token in tokenizer.get_vocab() if token.startswith("Ġ")}
    words = (text for text in openings if text.isascii() and text.isalpha() and text.istitle())
    return tuple(sorted(word.lower() for word in words))
