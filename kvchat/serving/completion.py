"""Chat completion: from messages to ids, through the engine, and back to streamed text."""

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from hashlib import blake2b
from threading import Lock, Thread
from time import monotonic

from kvchat.chat.conversation import BEHIND
from kvchat.chat.engine_client import EngineClient, RequestHandle, events_of
from kvchat.engine.api.events import Event, RequestFinished, TokenEmitted
from kvchat.engine.api.request import Request
from kvchat.errors import EngineFailed, KvchatError
from kvchat.serving.chat_request import ChatCompletionRequest
from kvchat.serving.metrics import Metrics
from kvchat.session.template.chat_template import ChatTemplate, Message
from kvchat.session.template.text_stream import Piece, TextStream
from kvchat.session.tree import Role

_OWNER = "serve"
_MOST_REMEMBERED = 2_000_000
"""Tokens of transcripts in all: some 80 MB of Python integers."""


class ChatCompletions:
    """Answers requests with one engine, which is loaded."""

    def __init__(self, engine: EngineClient, template: ChatTemplate, metrics: Metrics) -> None:
        self._engine = engine
        self._template = template
        self._metrics = metrics
        self._transcripts = Transcripts()
        self._ends = tuple(sorted(end for end in template.end_ids if end < engine.info().vocab_size))

    async def begin(self, request: ChatCompletionRequest) -> "ChatCompletion":
        """Hand a request to the engine.

        Raises:
            KvchatError: it is refused, or there is no engine any more.
        """
        # Encoding a long document takes a while, and so does handing in: neither may hold up the others.
        beginning = asyncio.ensure_future(asyncio.to_thread(self._begin, request, asyncio.get_running_loop()))
        try:
            return await asyncio.shield(beginning)
        except asyncio.CancelledError:
            beginning.add_done_callback(_stop_begun)
            raise

    def _begin(self, request: ChatCompletionRequest, loop: asyncio.AbstractEventLoop) -> "ChatCompletion":
        prompt = self._prompt(request)
        stops = self._template.stop_strings + request.stops
        stream = self._template.stream(prompt, stops=stops)
        engine_request = Request(
            token_ids=prompt,
            sampling=replace(request.sampling, stop_token_ids=self._ends),
            owner=_OWNER,
            priority=BEHIND,
            stop=self._template.stop_matcher(prompt, stops=stops),
        )
        handle = self._engine.submit(engine_request)
        return ChatCompletion(
            handle,
            stream,
            loop,
            on_finish=self._finished,
            on_said=lambda text, ids: self._said(request, prompt, text, ids),
        )

    def _prompt(self, request: ChatCompletionRequest) -> tuple[int, ...]:
        """Return the ids of a conversation: those the model saw as far as they are known here."""
        # The day, not the hour: a template that tells the time must not change the past with every question.
        now = datetime.combine(datetime.now().date(), datetime.min.time())
        known = self._transcripts.find(request.history) if request.history else None
        if known is None or request.history[-1].role != Role.ASSISTANT:
            return tuple(self._template.whole(request.history, request.question, now=now))
        token_ids, prompt_len = known
        answer_ids = token_ids[prompt_len:]
        following = self._template.following(request.history, request.question, answer_ids, now=now)
        return (*token_ids, *following)

    def _finished(self, event: RequestFinished, total_s: float) -> None:
        """Count a request that has ended, and let go of its branch; its blocks stay cached."""
        self._metrics.count(event, total_s)
        with suppress(KvchatError):
            self._engine.release(event.sequence)

    def _said(
        self, request: ChatCompletionRequest, prompt: tuple[int, ...], text: str, token_ids: Sequence[int]
    ) -> None:
        said = (*request.history, Message(Role.USER, request.question), Message(Role.ASSISTANT, text))
        self._transcripts.remember(said, (*prompt, *token_ids), len(prompt))


def _stop_begun(beginning: "asyncio.Future[ChatCompletion]") -> None:
    """Stop what was begun for a client that is gone."""
    if not beginning.cancelled() and beginning.exception() is None:
        beginning.result().stop()


class ChatCompletion:
    """An answer on its way. Iterate `pieces` once; leaving it early stops the model.

    Attributes:
        finished: the engine's last event, None before it has come.
        text: what was said so far, reasoning aside.
        token_ids: what was sampled so far.
    """

    def __init__(
        self,
        handle: RequestHandle,
        stream: TextStream,
        loop: asyncio.AbstractEventLoop,
        *,
        on_finish: Callable[[RequestFinished, float], None],
        on_said: Callable[[str, Sequence[int]], None],
    ) -> None:
        """Args:
        on_finish: called with the last event and the seconds it took, in a thread of its own.
        on_said: called in the loop with text and ids, when all of it has been read.
        """
        self.finished: RequestFinished | None = None
        self.text = ""
        self.token_ids: list[int] = []
        self._handle = handle
        self._stream = stream
        self._loop = loop
        self._on_finish = on_finish
        self._on_said = on_said
        self._start_s = monotonic()
        self._queue: asyncio.Queue[Event | KvchatError] = asyncio.Queue()
        # A daemon: an engine that never answers must not keep the process alive.
        Thread(target=self._pump, name="kvchat-completion", daemon=True).start()

    async def pieces(self) -> AsyncIterator[Piece]:
        """Yield text as it comes.

        Raises:
            KvchatError: why the engine died; EngineFailed where the request did.
        """
        try:
            while self.finished is None:
                for piece in self._taken(await self._queue.get()):
                    if not piece.reasoning:
                        self.text += piece.text
                    yield piece
            if self.finished.error is not None:
                raise EngineFailed(self.finished.error)
            self._on_said(self.text, self.token_ids)
        finally:
            if self.finished is None:
                self.stop()

    def stop(self) -> None:
        self._handle.cancel()

    def _taken(self, event: Event | KvchatError) -> tuple[Piece, ...]:
        if isinstance(event, KvchatError):
            raise event
        if isinstance(event, TokenEmitted):
            self.token_ids.append(event.token_id)
            return self._stream.feed(event.token_id)
        if isinstance(event, RequestFinished):
            self.finished = event
            return self._stream.finish()
        return ()

    # The thread that waits for the engine

    def _pump(self) -> None:
        try:
            for event in events_of(self._handle):
                if isinstance(event, RequestFinished):
                    self._on_finish(event, monotonic() - self._start_s)
                self._hand_over(event)
        except KvchatError as error:
            self._hand_over(error)

    def _hand_over(self, event: Event | KvchatError) -> None:
        try:
            self._loop.call_soon_threadsafe(self._queue.put_nowait, event)
        except RuntimeError:  # the loop has ended
            self._handle.cancel()


class Transcripts:
    """Token ids of earlier answers by the texts that clients send back, the oldest use forgotten first.

    Clients send a whole conversation each time, as text. Encoding an answer's text again gives other ids than
    were sampled, and every block behind it would be computed again. Any thread may call.
    """

    def __init__(self) -> None:
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
            while self._num_tokens > _MOST_REMEMBERED:
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
