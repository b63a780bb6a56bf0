"""Streaming detokenizer: whole characters only, reasoning marked, stop strings held back."""

import codecs
import copy
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvchat.session.template.tokenizer import ChatTokenizer


@dataclass(frozen=True, slots=True)
class Piece:
    """Text to show; `reasoning`: it belongs to the model's reasoning."""

    text: str
    reasoning: bool = False


class TextStream:
    """The text of one answer, token by token.

    The pieces of one kind, put together, equal the whole answer decoded at once. Cost per token is constant.

    Args:
        reasoning: the prompt has opened the reasoning already, as some templates do.
        trims_start: leave out blanks before the first word.
        stop_strings: the text ends before the first of them; text that could still become one is held back.
    """

    def __init__(
        self,
        tokenizer: "ChatTokenizer",
        *,
        reasoning: bool = False,
        trims_start: bool = False,
        stop_strings: Sequence[str] = (),
    ) -> None:
        self.stopped = False
        self._tokenizer = tokenizer
        self._decoder = _decoder(tokenizer)
        self._reasoning = reasoning
        self._at_start = reasoning or trims_start
        self._stops = tuple(stop for stop in stop_strings if stop)
        self._held = ""

    def feed(self, token_id: int) -> tuple[Piece, ...]:
        """Take the next token and return the text that may be shown now."""
        if self.stopped:
            return ()
        think = self._tokenizer.think_ids
        if think is not None and token_id in think:
            return self._switch(reasoning=token_id == think[0])
        if token_id in self._tokenizer.special_ids:
            return ()
        return self._release(self._decoder.feed(token_id))

    def resume(self, token_ids: Iterable[int]) -> None:
        """Take tokens whose text was shown before; what was held back then counts as shown."""
        for token_id in token_ids:
            self.feed(token_id)
        self._held = ""

    def finish(self) -> tuple[Piece, ...]:
        """Return what was held back; the answer is over. Bytes of an unfinished character are left out."""
        if self.stopped:
            return ()
        text, self._held = self._held, ""
        return self._pieces(text)

    def finish_exactly(self) -> tuple[Piece, ...]:
        """Like `finish`, but an unfinished character becomes a replacement character, as in a decode."""
        return self.finish() if self.stopped else (*self._release(self._decoder.finish()), *self.finish())

    def _switch(self, *, reasoning: bool) -> tuple[Piece, ...]:
        before = self.finish_exactly()
        self._decoder = _decoder(self._tokenizer)
        self._reasoning = reasoning
        self._at_start = True
        return before

    def _release(self, text: str) -> tuple[Piece, ...]:
        if self._at_start:
            # Line ends between the reasoning's marks and the text are layout.
            text = text.lstrip()
            self._at_start = not text
        if not self._stops or self._reasoning:
            return self._pieces(text)
        text = self._held + text
        end = min((at for at in map(text.find, self._stops) if at >= 0), default=None)
        if end is not None:
            self.stopped, self._held = True, ""
            return self._pieces(text[:end])
        keep = _could_become(text, self._stops)
        self._held = text[len(text) - keep :]
        return self._pieces(text[: len(text) - keep])

    def _pieces(self, text: str) -> tuple[Piece, ...]:
        return (Piece(text, self._reasoning),) if text else ()


class StopStrings:
    """Stop strings for the engine: tells when the text of an answer has reached one.

    Matches across token boundaries and never inside reasoning, exactly where the stream would end the text.
    Implements `StopMatcher`.

    Args:
        stream: a stream with the stop strings, at the point where the answer goes on.
        prompt_len: how many of the request's ids come before the answer; from that and the ids another
            process makes the same matcher.
    """

    def __init__(self, stream: TextStream, prompt_len: int = 0) -> None:
        self.prompt_len = prompt_len
        self._stream = stream

    def feed(self, token_id: int) -> bool:
        self._stream.feed(token_id)
        return self._stream.stopped

    def fork(self) -> "StopStrings":
        return StopStrings(copy.deepcopy(self._stream), self.prompt_len)


class _ByteLevelDecoder:
    """Byte-level BPE: every token is a run of bytes, so the text is their incremental UTF-8."""

    def __init__(self, tokenizer: "ChatTokenizer") -> None:
        self._tokenizer = tokenizer
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def feed(self, token_id: int) -> str:
        token = self._tokenizer.token_of(token_id)
        return "" if token is None else self._utf8.decode(_token_bytes(token))

    def finish(self) -> str:
        return self._utf8.decode(b"", final=True)


class _WindowDecoder:
    """Any other decoder: decode a short window with and without the newest tokens, and return the difference.

    The window begins at a token whose text has been shown, so a decoder that strips a leading blank strips it
    from both.
    """

    _MAX_HELD = 8

    def __init__(self, tokenizer: "ChatTokenizer") -> None:
        self._tokenizer = tokenizer
        self._shown: list[int] = []
        self._new: list[int] = []

    def feed(self, token_id: int) -> str:
        self._new.append(token_id)
        text = self._difference()
        # A replacement character at the end is mostly the first half of a character.
        if not text or (text.endswith("�") and len(self._new) < self._MAX_HELD):
            return ""
        self._shown, self._new = self._new, []
        return text

    def finish(self) -> str:
        return self._difference() if self._new else ""

    def _difference(self) -> str:
        shown = self._tokenizer.decode(self._shown)
        return self._tokenizer.decode(self._shown + self._new)[len(shown) :]


def _decoder(tokenizer: "ChatTokenizer") -> "_ByteLevelDecoder | _WindowDecoder":
    return _ByteLevelDecoder(tokenizer) if tokenizer.byte_level else _WindowDecoder(tokenizer)


def _could_become(text: str, stops: Sequence[str]) -> int:
    """Return the length of the longest end of `text` that begins a stop string."""
    longest = min(len(text), max(map(len, stops)) - 1)
    return next(
        (size for size in range(longest, 0, -1) if any(stop.startswith(text[-size:]) for stop in stops)), 0
    )


def _token_bytes(token: str) -> bytes:
    try:
        return bytes(_BYTE_OF[character] for character in token)
    except KeyError:
        # An added token is kept as plain text.
        return token.encode(errors="replace")


def _byte_alphabet() -> dict[str, int]:
    """Return the printable character that byte-level BPE writes for each byte, as GPT-2 defined it."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    alphabet = {chr(byte): byte for byte in plain}
    others = (byte for byte in range(256) if byte not in set(plain))
    return alphabet | {chr(256 + at): byte for at, byte in enumerate(others)}


_BYTE_OF = _byte_alphabet()
