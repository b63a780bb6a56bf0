"""The shipped tokenizer, and the training that made it."""

from __future__ import annotations

from pathlib import Path

import jinja2.sandbox
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

import kvchat.starter
from tools.starter.tokenizer import (
    END_ID,
    ROLE_IDS,
    SPECIAL_TOKENS,
    VOCABULARY_SIZE,
    letter_pieces,
    opened,
    train_tokenizer,
)

pytestmark = [pytest.mark.pure, pytest.mark.long]

MODEL = Path(kvchat.starter.__file__).parent / "model"


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(MODEL / "tokenizer.json"))


def test_its_size_and_special_tokens_are_those_of_the_model(tokenizer: Tokenizer) -> None:
    assert tokenizer.get_vocab_size() == VOCABULARY_SIZE
    assert [tokenizer.token_to_id(token) for token in SPECIAL_TOKENS] == list(range(5))


@given(text=st.text(st.characters(exclude_categories=("Cs",))))
@settings(max_examples=200, deadline=None)
def test_any_text_comes_back_unchanged(text: str) -> None:
    loaded = Tokenizer.from_file(str(MODEL / "tokenizer.json"))
    assert loaded.decode(loaded.encode(text).ids, skip_special_tokens=False) == text


def test_every_digit_is_its_own_token(tokenizer: Tokenizer) -> None:
    tokens = tokenizer.encode("The code is 90417.").tokens
    assert [token for token in tokens if token.isdigit()] == list("90417")


def test_training_gives_the_same_tokenizer_every_time() -> None:
    assert train_tokenizer(num_turns=300).to_str() == train_tokenizer(num_turns=300).to_str()


def test_letter_pieces_are_lower_case_letters(tokenizer: Tokenizer) -> None:
    pieces = letter_pieces(tokenizer)
    assert len(pieces) > 1000
    assert all(piece.isalpha() and piece.islower() for piece in pieces)


def test_the_template_writes_roles_and_ends_as_the_training_did(tokenizer: Tokenizer) -> None:
    source = (MODEL / "chat_template.jinja").read_text(encoding="utf-8")
    template = jinja2.sandbox.ImmutableSandboxedEnvironment().from_string(source)
    messages = [{"role": "system", "content": "Answer briefly."}, {"role": "user", "content": "Hello!"}]
    text = template.render(messages=messages, add_generation_prompt=True)
    expected: list[int] = []
    for message in messages:
        written = opened(message["role"], message["content"])
        expected += [ROLE_IDS[message["role"]], *tokenizer.encode(written).ids, END_ID]
    assert tokenizer.encode(text).ids == [*expected, ROLE_IDS["assistant"]]
