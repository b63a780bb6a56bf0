import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvchat.session.template.text_stream import Piece, StopStrings, TextStream
from kvchat.session.template.tokenizer import ANSWER_MARK, GUARD, ChatTokenizer
from tests.tiny_models import GEMMA, QWEN_THINKING, STARTER, write_model

pytestmark = pytest.mark.pure


@pytest.fixture(scope="module")
def byte_level(tmp_path_factory: pytest.TempPathFactory) -> ChatTokenizer:
    return ChatTokenizer.from_dir(write_model(tmp_path_factory.mktemp("byte"), STARTER))


@pytest.fixture(scope="module")
def sentencepiece(tmp_path_factory: pytest.TempPathFactory) -> ChatTokenizer:
    return ChatTokenizer.from_dir(write_model(tmp_path_factory.mktemp("spm"), GEMMA, sentencepiece=True))


@pytest.fixture(scope="module")
def thinking(tmp_path_factory: pytest.TempPathFactory) -> ChatTokenizer:
    return ChatTokenizer.from_dir(write_model(tmp_path_factory.mktemp("think"), QWEN_THINKING))


def streamed(stream: TextStream, ids: list[int]) -> list[Piece]:
    pieces = [piece for token_id in ids for piece in stream.feed(token_id)]
    return pieces + list(stream.finish_exactly())


def text_of(pieces: list[Piece], *, reasoning: bool = False) -> str:
    return "".join(piece.text for piece in pieces if piece.reasoning == reasoning)


def test_both_kinds_of_decoder_are_recognised(byte_level, sentencepiece) -> None:
    assert byte_level.byte_level
    assert not sentencepiece.byte_level


@given(ids=st.lists(st.integers(0, 499), max_size=60))
def test_any_ids_stream_to_what_they_decode_to_at_once(byte_level, ids: list[int]) -> None:
    assert text_of(streamed(TextStream(byte_level), ids)) == byte_level.decode(ids)


@given(text=st.text(max_size=40))
def test_text_streams_to_itself_byte_level(byte_level, text: str) -> None:
    ids = byte_level.encode(byte_level.guarded(text))
    pieces = [piece.text for piece in streamed(TextStream(byte_level), ids)]
    shown = (
        text.encode(errors="replace").decode().translate(dict.fromkeys(map(ord, GUARD + ANSWER_MARK), "�"))
    )
    assert "".join(pieces) == shown
    assert "�" in shown or not any("�" in piece for piece in pieces)


@given(
    text=st.text(
        st.characters(exclude_categories=["Cs"], exclude_characters="▁\N{REPLACEMENT CHARACTER}"), max_size=40
    )
)
def test_text_streams_to_what_it_decodes_to_sentencepiece(sentencepiece, text: str) -> None:
    ids = sentencepiece.encode(text)
    pieces = [piece.text for piece in streamed(TextStream(sentencepiece), ids)]
    assert "".join(pieces) == sentencepiece.decode(ids)
    assert not any("�" in piece for piece in pieces)


def test_half_a_character_is_never_shown(byte_level, sentencepiece) -> None:
    for tokenizer in (byte_level, sentencepiece):
        stream = TextStream(tokenizer)
        ids = tokenizer.encode("a😀b")
        texts = [text_of(list(stream.feed(token_id))) for token_id in ids]
        assert "😀" in texts or "a😀" in texts
        assert all(text in ("", "a", "😀", "b", "a😀", "😀b") for text in texts)


def test_an_answer_that_ends_inside_a_character_ends_before_it(byte_level) -> None:
    stream = TextStream(byte_level)
    ids = byte_level.encode("a😀")
    shown = [piece for token_id in ids[:-1] for piece in stream.feed(token_id)]
    assert text_of(shown + list(stream.finish())) == "a"
    again = TextStream(byte_level)
    again.resume(ids[:-1])
    assert text_of(list(again.feed(ids[-1]))) == "😀"


@given(ids=st.lists(st.integers(0, 255), max_size=40))
def test_bytes_that_are_no_text_are_still_shown_in_the_end(sentencepiece, ids: list[int]) -> None:
    first = sentencepiece.id_of("<0x00>")
    stream = TextStream(sentencepiece)
    pieces = streamed(stream, [first + byte for byte in ids])
    assert bool(text_of(pieces)) == bool(ids)


def test_end_of_turn_tokens_have_no_text(byte_level) -> None:
    ids = [*byte_level.encode("Hi"), byte_level.id_of("<|end|>")]
    assert text_of(streamed(TextStream(byte_level), ids)) == "Hi"


def test_reasoning_is_told_by_token_ids(thinking) -> None:
    ids = thinking.encode("<think>\nHello you\n</think>\n\nThe answer is no.")
    pieces = streamed(TextStream(thinking), ids)
    assert text_of(pieces, reasoning=True) == "Hello you\n"
    assert text_of(pieces) == "The answer is no."


def test_the_word_think_is_no_reasoning_where_it_is_no_token(byte_level) -> None:
    pieces = streamed(TextStream(byte_level), byte_level.encode("<think>a</think>b"))
    assert text_of(pieces) == "<think>a</think>b"


def test_text_ends_before_a_stop_string_and_its_beginning_is_held_back(byte_level) -> None:
    stream = TextStream(byte_level, stop_strings=["\nUser:", "END"])
    shown = ""
    for token_id in byte_level.encode("One\nUs two\nUser: three"):
        shown += text_of(list(stream.feed(token_id)))
        assert "\nUser" not in shown
    assert shown == "One\nUs two"
    assert stream.stopped
    assert stream.finish() == ()


def test_text_that_only_looked_like_a_stop_string_is_shown_at_the_end(byte_level) -> None:
    pieces = streamed(TextStream(byte_level, stop_strings=["\nUser:"]), byte_level.encode("One\nUse"))
    assert text_of(pieces) == "One\nUse"


@given(
    text=st.text("ab\n", max_size=30),
    stops=st.lists(st.text("ab\n", min_size=1, max_size=4), min_size=1, max_size=3),
)
def test_the_engine_stops_exactly_where_the_text_ends(byte_level, text: str, stops: list[str]) -> None:
    ids = byte_level.encode(text)
    stream = TextStream(byte_level, stop_strings=stops)
    matcher = StopStrings(TextStream(byte_level, stop_strings=stops))
    shown, fed = "", ""
    for token_id in ids:
        shown += text_of(list(stream.feed(token_id)))
        fed += byte_level.decode([token_id])
        assert matcher.feed(token_id) == stream.stopped == any(stop in fed for stop in stops)
        if stream.stopped:
            break
    shown += text_of(list(stream.finish()))
    end = min((text.find(stop) for stop in stops if stop in fed), default=len(text))
    assert shown == text[:end]


def test_every_token_costs_the_same_however_long_the_answer_is(sentencepiece) -> None:
    stream = TextStream(sentencepiece)
    decoded = []

    class Counting:
        """The tokenizer, noting how much it decodes."""

        def decode(self, token_ids: list[int]) -> str:
            decoded.append(len(token_ids))
            return sentencepiece.decode(token_ids)

    stream._decoder._tokenizer = Counting()  # type: ignore[attr-defined]
    for token_id in sentencepiece.encode("Hello! How can I help you today? " * 50):
        stream.feed(token_id)
    assert max(decoded) < 20


def test_a_forked_matcher_goes_on_by_itself(byte_level: ChatTokenizer) -> None:
    matcher = StopStrings(TextStream(byte_level, stop_strings=["END"]))
    first, second, third = (byte_level.encode(letter)[0] for letter in "END")
    matcher.feed(first)
    fork = matcher.fork()
    assert not matcher.feed(second)
    assert not fork.feed(first)
    assert matcher.feed(third)
    assert not fork.feed(third)
