"""The endpoint: chat completions, models, health and metrics, for programs on this machine."""

import asyncio
import json
from collections.abc import AsyncIterator

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from kvchat.chat.engine_client import EngineClient
from kvchat.engine.api.engine_phase import EnginePhase
from kvchat.engine.api.sampling_params import SamplingParams
from kvchat.errors import CapacityError, ContextOverflow, InvalidRequest, KvchatError, UnsupportedModel
from kvchat.serving.chat_request import ChatCompletionRequest, RequestRefused, read_chat_request
from kvchat.serving.completion import ChatCompletion, ChatCompletions
from kvchat.serving.guard import BODY_S, Guard
from kvchat.serving.metrics import CONTENT_TYPE, Metrics
from kvchat.serving.replies import ReplyHead, delta, error_value, finish, refusal, server_event
from kvchat.session.template.chat_template import ChatTemplate

ANY_MODEL = "kvchat"
"""Names whatever model is loaded."""


def make_app(
    engine: EngineClient,
    template: ChatTemplate,
    key: str,
    sampling: SamplingParams,
    *,
    body_s: float = BODY_S,
) -> ASGIApp:
    """Return the guarded endpoint for a loaded engine.

    Args:
        key: what clients have to know.
        sampling: used where a request says nothing.
    """
    endpoint = ServingApp(engine, template, sampling)
    routes = [
        Route("/v1/chat/completions", endpoint.complete, methods=["POST"]),
        Route("/v1/models", endpoint.models),
        Route("/v1/models/{name:path}", endpoint.model),
        Route("/health", endpoint.health),
        Route("/metrics", endpoint.metrics),
    ]
    return Guard(Starlette(routes=routes), key, body_s)


class ServingApp:
    """What each path answers."""

    def __init__(self, engine: EngineClient, template: ChatTemplate, sampling: SamplingParams) -> None:
        self._engine = engine
        self._sampling = sampling
        self._metrics = Metrics()
        self._completions = ChatCompletions(engine, template, self._metrics)
        self._model = engine.info().model

    async def complete(self, request: Request) -> Response:
        """Answer a chat completion, whole or as a stream."""
        try:
            chat_request = read_chat_request(json.loads(await request.body()), self._sampling)
        except InvalidRequest as error:
            return refusal(400, str(error), "invalid_value", getattr(error, "param", None))
        except (ValueError, RecursionError):
            return refusal(400, "the body is not JSON", "invalid_json")
        if chat_request.model not in (self._model, ANY_MODEL):
            return self._unknown(chat_request.model)
        try:
            completion = await self._completions.begin(chat_request)
            head = ReplyHead(model=self._model)
            if chat_request.stream:
                return _Stream(head, completion, chat_request)
            return await _whole(head, completion, request)
        except KvchatError as error:
            return _failed(error)

    async def models(self, request: Request) -> Response:
        return JSONResponse({"object": "list", "data": [self._described()]})

    async def model(self, request: Request) -> Response:
        name = request.path_params["name"]
        return JSONResponse(self._described()) if name in (self._model, ANY_MODEL) else self._unknown(name)

    async def health(self, request: Request) -> Response:
        is_ready = self._engine.status().phase is EnginePhase.READY
        return JSONResponse({"status": "ok" if is_ready else "failed"}, status_code=200 if is_ready else 503)

    async def metrics(self, request: Request) -> Response:
        text = self._metrics.text(self._model, self._engine.snapshot())
        return PlainTextResponse(text, headers={"content-type": CONTENT_TYPE})

    def _described(self) -> dict[str, object]:
        info = self._engine.info()
        return {
            "id": self._model,
            "object": "model",
            "created": 0,
            "owned_by": "kvchat",
            "max_model_len": info.max_context,
        }

    def _unknown(self, name: str) -> Response:
        return refusal(
            404, f"the model {name!r} is not loaded; there is {self._model!r}", "model_not_found", "model"
        )


class _Stream(StreamingResponse):
    """An answer as it comes; a client that goes away stops the model, however early."""

    def __init__(
        self, head: ReplyHead, completion: ChatCompletion, chat_request: ChatCompletionRequest
    ) -> None:
        super().__init__(_events(head, completion, chat_request), media_type="text/event-stream")
        self._completion = completion

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            # A client that left while its prompt was encoded ends the stream before its first part.
            if self._completion.finished is None:
                self._completion.stop()


async def _events(
    head: ReplyHead, completion: ChatCompletion, chat_request: ChatCompletionRequest
) -> AsyncIterator[bytes]:
    """Yield a stream's parts."""
    try:
        yield head.chunk({"role": "assistant", "content": ""})
        async for piece in completion.pieces():
            yield head.chunk(delta(piece))
        assert completion.finished is not None
        yield head.chunk({}, finish(completion.finished))
        if chat_request.wants_usage:
            yield head.usage_chunk(completion.finished)
    except KvchatError as error:
        yield server_event(error_value(str(error), "server_error"))
    yield b"data: [DONE]\n\n"


async def _whole(head: ReplyHead, completion: ChatCompletion, request: Request) -> Response:
    """Return an answer when it is complete; a client that goes away stops the model."""
    gone = asyncio.ensure_future(_until_gone(request))
    reading = asyncio.ensure_future(_read(completion))
    try:
        await asyncio.wait({gone, reading}, return_when=asyncio.FIRST_COMPLETED)
        if not reading.done():
            return Response(status_code=499)  # nobody is there to read it
        text, reasoning = reading.result()
    finally:
        gone.cancel()
        reading.cancel()
        if completion.finished is None:
            completion.stop()
    assert completion.finished is not None
    return JSONResponse(head.whole(text, reasoning, completion.finished))


async def _read(completion: ChatCompletion) -> tuple[str, str]:
    reasoning = ""
    async for piece in completion.pieces():
        reasoning += piece.text if piece.reasoning else ""
    return completion.text, reasoning


async def _until_gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _failed(error: KvchatError) -> Response:
    if isinstance(error, ContextOverflow):
        return refusal(400, str(error), "context_length_exceeded", "messages")
    if isinstance(error, InvalidRequest | UnsupportedModel):
        param = error.param if isinstance(error, RequestRefused) else None
        return refusal(400, str(error), "invalid_value", param)
    return refusal(503 if isinstance(error, CapacityError) else 500, str(error), "unavailable")
