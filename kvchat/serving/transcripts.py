"""Transcripts of the endpoint: the token ids of earlier answers, found by the text that a client sends back.

Clients send a whole conversation each time, as text. Encoding an answer's text again gives other ids than
were sampled, and every block behind it would be computed again. So the ids of each answer are remembered; an
answer that is not found is encoded from its text.
"""

from collections import OrderedDict
from collections.abc import Sequence
from hashlib import blake2b
from threading import Lock

from kvchat.session.template.chat_template import Message

MAX_TOKENS = 2_000_000
"""Remembered in all: some 80 MB of Python integers."""


class Transcripts:
    """Conversations by their texts, the one used longest ago forgotten first. Any thread may call."""

    def __init__(self, max_tokens: int = MAX_TOKENS) -> None:
        self._max_tokens = max_tokens
        self._num_tokens = 0
        self._guard = Lock()
        self._known: OrderedDict[bytes, tuple[tuple[int, ...], int]] = OrderedDict()

    def remember(self, messages: Sequence[Message], token_ids: tuple[int, ...], prompt_len: int) -> None:
        """Note which ids stand for messages, an answer last. `prompt_len`: those before that answer."""
        key = _key(messages)
        with self._guard:
            self._forget(key)
            self._known[key] = (token_ids, prompt_len)
            self._num_tokens += len(token_ids)
            while self._num_tokens > self._max_tokens:
                self._forget(next(iter(self._known)))

    def find(self, messages: Sequence[Message]) -> tuple[tuple[int, ...], int] | None:
        """Return the ids of messages, and how many of them come before the last answer."""
        key = _key(messages)
        with self._guard:
            if key in self._known:
                self._known.move_to_end(key)
            return self._known.get(key)

    def _forget(self, key: bytes) -> None:
        token_ids, _ = self._known.pop(key, ((), 0))
        self._num_tokens -= len(token_ids)


def _key(messages: Sequence[Message]) -> bytes:
    digest = blake2b(digest_size=20)
    for message in messages:
        for part in (str(message.role), message.content):
            data = part.encode()
            digest.update(len(data).to_bytes(8, "little") + data)
    return digest.digest()
