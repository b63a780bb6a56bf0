"""Tokenizer of a model: text to ids and back; a person's text never becomes a control token."""

import json
import re
from collections.abc import Sequence
from functools import cached_property
from hashlib import blake2b
from itertools import takewhile
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from kvchat.errors import ModelUnreadable, UnsupportedModel

GUARD = "\U000f0c41"
"""A private-use character that breaks the text of a control token a person typed; it is never encoded."""

ANSWER_MARK = "\U000f0c42"
"""A private-use character that stands for an answer while what follows is rendered; it is never encoded."""

_PRIVATE = str.maketrans(dict.fromkeys((GUARD, ANSWER_MARK), "\N{REPLACEMENT CHARACTER}"))
_THINK = ("<think>", "</think>")


class ChatTokenizer:
    """`tokenizer.json` of a model.

    Args:
        digest: names the tokenizer; ids of two tokenizers with one digest mean the same.
        markup: text of the chat template; added tokens that it spells are control tokens too.
    """

    def __init__(self, tokenizer: Tokenizer, digest: str, markup: str = "") -> None:
        self.digest = digest
        self._tokenizer = tokenizer
        added = tokenizer.get_added_tokens_decoder()
        self.special_ids = frozenset(at for at, token in added.items() if token.special)
        self._control = {
            token.content: at
            for at, token in added.items()
            if token.special or token.content in _THINK or _is_markup(token.content, markup)
        }
        texts = sorted(self._control, key=len, reverse=True)
        # A look-ahead finds overlapping ones too.
        self._control_pattern = re.compile("(?=" + "|".join(map(re.escape, texts)) + ")") if texts else None

    def __deepcopy__(self, memo: object) -> "ChatTokenizer":
        """A tokenizer never changes; copies of what uses it share it."""
        return self

    @classmethod
    def from_dir(cls, model_dir: Path, markup: str = "") -> "ChatTokenizer":
        """Read the tokenizer of a model directory.

        Raises:
            UnsupportedModel: there is no tokenizer.json.
            ModelUnreadable: it is damaged.
        """
        file = model_dir / "tokenizer.json"
        if not file.is_file():
            raise UnsupportedModel(
                f"{model_dir} has no tokenizer.json; save the model with a fast tokenizer "
                "(AutoTokenizer.from_pretrained(...).save_pretrained(...)) and try again"
            )
        tokenizer, digest = read_tokenizer(file)
        tokenizer.no_padding()
        tokenizer.no_truncation()
        return cls(tokenizer, digest, markup)

    @cached_property
    def think_ids(self) -> tuple[int, int] | None:
        """Ids of `<think>` and `</think>` where they are tokens of their own."""
        opening, closing = (self._tokenizer.token_to_id(text) for text in _THINK)
        return None if opening is None or closing is None else (opening, closing)

    @cached_property
    def leading_ids(self) -> tuple[int, ...]:
        """Ids that the tokenizer itself puts before a text (a BOS, mostly)."""
        encoding = self._tokenizer.encode("a", add_special_tokens=True)
        pairs = zip(encoding.ids, encoding.special_tokens_mask, strict=True)
        return tuple(token_id for token_id, _ in takewhile(lambda pair: pair[1], pairs))

    @cached_property
    def byte_level(self) -> bool:
        """Whether ids decode to bytes one by one (byte-level BPE)."""
        decoder = json.loads(self._tokenizer.to_str()).get("decoder")
        return _decoder_types(decoder) == ["ByteLevel"]

    def id_of(self, token: str) -> int | None:
        return self._tokenizer.token_to_id(token)

    def token_of(self, token_id: int) -> str | None:
        return self._tokenizer.id_to_token(token_id)

    def control_text(self, text: str) -> str:
        """Return the control token that `text` starts with, or an empty string."""
        return max((control for control in self._control if text.startswith(control)), key=len, default="")

    def guarded(self, text: str) -> str:
        """Return a person's text with every control token in it broken by a guard character.

        The two private characters that mark places become replacement characters: the model sees that there
        was something.
        """
        text = text.translate(_PRIVATE)
        if self._control_pattern is None:
            return text
        parts, last = [], 0
        for match in self._control_pattern.finditer(text):
            parts.append(text[last : match.start() + 1])
            last = match.start() + 1
        return GUARD.join([*parts, text[last:]])

    def encode(self, text: str, *, after: str = "") -> list[int]:
        """Return the ids of rendered text.

        Text without guards is encoded as one; with guards piece by piece, so that no control token forms
        across them. Pieces can differ from what the tokenizer would make of the whole, the text they decode
        to does not (a tokenizer that puts a space before every text adds one per guard).

        Args:
            after: the control token that precedes the text. Encoded with it and dropped, so that tokens which
                swallow or add blanks behind them do so here as well.
        """
        pieces = text.split(GUARD)
        ids = self._encode_behind(pieces[0], after)
        for piece in pieces[1:]:
            ids += self._encode_behind(piece, self._anchor)
        return ids

    def decode(self, token_ids: Sequence[int], *, keep_control: bool = False) -> str:
        return self._tokenizer.decode(list(token_ids), skip_special_tokens=not keep_control)

    def _encode_behind(self, text: str, before: str) -> list[int]:
        if not text:
            return []
        ids: list[int] = self._tokenizer.encode(before + text, add_special_tokens=False).ids
        before_id = self._control.get(before)
        if before_id is None:
            return ids
        return ids[1:] if ids[:1] == [before_id] else self._encode_behind(text, "")

    @cached_property
    def _anchor(self) -> str:
        """A control token to encode a piece behind: the first that swallows nothing."""
        added = self._tokenizer.get_added_tokens_decoder()
        plain = (token.content for token in added.values() if token.special and not token.rstrip)
        return next(plain, "")


def read_tokenizer(file: Path) -> tuple[Tokenizer, str]:
    """Return the tokenizer in a tokenizer.json, and the digest that names it.

    Raises:
        ModelUnreadable: it is damaged.
    """
    try:
        data = file.read_bytes()
        tokenizer = Tokenizer.from_buffer(data)
    except Exception as error:  # the tokenizers library raises bare Exception
        raise ModelUnreadable(f"{file} cannot be read ({error}); download the model again") from error
    return tokenizer, blake2b(data, digest_size=16).hexdigest()


def _is_markup(token: str, markup: str) -> bool:
    return len(token) > 2 and not token.isspace() and not token.isalnum() and token in markup


def _decoder_types(decoder: Any) -> list[str]:
    if not decoder:
        return []
    if decoder.get("type") == "Sequence":
        return [kind for part in decoder["decoders"] for kind in _decoder_types(part)]
    return [] if decoder["type"] == "Fuse" else [decoder["type"]]
