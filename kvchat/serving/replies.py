"""Replies to a client, in the formats of OpenAI's chat completions."""

import json
import secrets
from dataclasses import dataclass, field
from time import time

from starlette.responses import JSONResponse, Response

from kvchat.engine.api.events import FinishReason, RequestFinished
from kvchat.session.template.text_stream import Piece

_FINISH = {FinishReason.LENGTH: "length"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplyHead:
    """What every part of one answer begins with."""

    model: str
    id: str = field(default_factory=lambda: f"chatcmpl-{secrets.token_hex(12)}")
    created: int = field(default_factory=lambda: int(time()))

    def chunk(self, delta: dict[str, str], finish_reason: str | None = None) -> bytes:
        """Return a part of a stream."""
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
        return server_event(self._with("chat.completion.chunk", choices=[choice]))

    def usage_chunk(self, finished: RequestFinished) -> bytes:
        return server_event(self._with("chat.completion.chunk", choices=[], usage=usage(finished)))

    def whole(self, text: str, reasoning: str, finished: RequestFinished) -> dict[str, object]:
        """Return an answer that is not streamed."""
        message: dict[str, object] = {"role": "assistant", "content": text, "refusal": None}
        if reasoning:
            message["reasoning_content"] = reasoning
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": finish(finished)}
        return self._with("chat.completion", choices=[choice], usage=usage(finished))

    def _with(self, kind: str, **values: object) -> dict[str, object]:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model} | values


def delta(piece: Piece) -> dict[str, str]:
    return {"reasoning_content" if piece.reasoning else "content": piece.text}


def finish(finished: RequestFinished) -> str:
    return _FINISH.get(finished.reason, "stop")


def usage(finished: RequestFinished) -> dict[str, object]:
    """Return what an answer cost; what was found in the cache has OpenAI's name."""
    counts = finished.usage
    return {
        "prompt_tokens": counts.prompt_tokens,
        "completion_tokens": counts.completion_tokens,
        "total_tokens": counts.prompt_tokens + counts.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": counts.cached_tokens},
    }


def server_event(value: object) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"


def error_value(
    message: str, kind: str, code: str | None = None, param: str | None = None
) -> dict[str, object]:
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def refusal(status: int, message: str, code: str, param: str | None = None) -> Response:
    kind = "invalid_request_error" if status < 500 else "server_error"
    return JSONResponse(error_value(message, kind, code, param), status_code=status)
