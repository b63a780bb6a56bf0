"""Chat completion request: the body of a request, read into a value or refused with the field's name.

Fields follow OpenAI's chat completions; `top_k`, `min_p` and `repetition_penalty` are vLLM's. Unsupported
fields that would change the answer (tools, pictures, several answers) are refused; others are ignored.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from kvchat.engine.api.sampling_params import SamplingParams
from kvchat.errors import InvalidRequest
from kvchat.session.template.chat_template import SYSTEM, Message
from kvchat.session.tree import Role

_MAX_STOPS = 16
_ROLES = {"system": SYSTEM, "developer": SYSTEM, "user": Role.USER, "assistant": Role.ASSISTANT}
_SAMPLING = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "seed")
_NEUTRAL: Mapping[str, tuple[object, ...]] = {
    "n": (None, 1),
    "tools": (None, []),
    "functions": (None, []),
    "tool_choice": (None, "none"),
    "logprobs": (None, False),
    "frequency_penalty": (None, 0),
    "presence_penalty": (None, 0),
    "logit_bias": (None, {}),
    "response_format": (None, {"type": "text"}),
    "modalities": (None, ["text"]),
}
"""Fields that would change the answer, with the values at which they do not."""


class RequestRefused(InvalidRequest):
    """A field that cannot be taken. `param`: its name."""

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatCompletionRequest:
    """One chat completion.

    Args:
        model: the name that was asked for.
        history: what was said before the question.
        question: the last message, a user's.
        sampling: how to choose tokens.
        stops: strings before which the answer ends.
        stream: send it as it comes.
        wants_usage: end a stream with what it cost.
    """

    model: str
    history: tuple[Message, ...]
    question: str
    sampling: SamplingParams
    stops: tuple[str, ...] = ()
    stream: bool = False
    wants_usage: bool = False


def read_chat_request(body: object, defaults: SamplingParams) -> ChatCompletionRequest:
    """Return what a body asks for.

    Args:
        defaults: used where it says nothing.

    Raises:
        InvalidRequest: it is none, or asks for what is not there; the message says what to change.
    """
    if not isinstance(body, dict):
        raise RequestRefused("the body must be a JSON object")
    for name, neutral in _NEUTRAL.items():
        if body.get(name) not in neutral:
            raise RequestRefused(f"{name} is not supported; leave it out", name)
    messages = _messages(body.get("messages"))
    stream = _flag(body, "stream")
    options = body.get("stream_options") or {}
    if not isinstance(options, dict):
        raise RequestRefused("stream_options must be an object", "stream_options")
    return ChatCompletionRequest(
        model=_text(body.get("model"), "model"),
        history=messages[:-1],
        question=messages[-1].content,
        sampling=_sampling(body, defaults),
        stops=_stops(body.get("stop")),
        stream=stream,
        wants_usage=_flag(options, "include_usage"),
    )


def _messages(data: object) -> tuple[Message, ...]:
    if not isinstance(data, list) or not data:
        raise RequestRefused("messages must be a list of messages", "messages")
    messages = tuple(_message(one, f"messages.{at}") for at, one in enumerate(data))
    if messages[-1].role != Role.USER:
        raise RequestRefused("the last message must be the user's", "messages")
    for at, message in enumerate(messages[1:], 1):
        before = messages[at - 1]
        if message.role == SYSTEM:
            raise RequestRefused("a system message can only be the first", f"messages.{at}")
        if message.role == before.role or (before.role == SYSTEM and message.role != Role.USER):
            raise RequestRefused("user and assistant must take turns, the user first", f"messages.{at}")
    if messages[0].role == Role.ASSISTANT:
        raise RequestRefused("user and assistant must take turns, the user first", "messages.0")
    return messages


def _message(data: object, param: str) -> Message:
    if not isinstance(data, dict):
        raise RequestRefused("a message must be an object", param)
    role = _ROLES.get(str(data.get("role")))
    if role is None:
        raise RequestRefused(f"the role must be one of {', '.join(_ROLES)}", f"{param}.role")
    if data.get("tool_calls"):
        raise RequestRefused("tools are not supported", f"{param}.tool_calls")
    content = data.get("content")
    if isinstance(content, list):
        content = "".join(_part(one, f"{param}.content") for one in content)
    return Message(role, _text(content, f"{param}.content"))


def _part(data: object, param: str) -> str:
    if not isinstance(data, dict) or data.get("type") != "text":
        raise RequestRefused("only parts of type 'text' are supported", param)
    return _text(data.get("text"), param)


def _sampling(body: Mapping[str, Any], defaults: SamplingParams) -> SamplingParams:
    given = {name: body[name] for name in _SAMPLING if body.get(name) is not None}
    limits = [body[name] for name in ("max_completion_tokens", "max_tokens") if body.get(name) is not None]
    if limits:
        given["max_tokens"] = limits[0]
    if given.get("top_k") in (-1, 0):  # vLLM's ways to say none
        given["top_k"] = None
    return replace(defaults, **given)


def _stops(data: object) -> tuple[str, ...]:
    stops = [] if data is None else [data] if isinstance(data, str) else data
    if not isinstance(stops, list) or len(stops) > _MAX_STOPS:
        raise RequestRefused(f"stop must be a string, or a list of up to {_MAX_STOPS}", "stop")
    return tuple(stop for one in stops if (stop := _text(one, "stop")))


def _flag(data: Mapping[str, Any], name: str) -> bool:
    value = data.get(name) or False
    if not isinstance(value, bool):
        raise RequestRefused(f"{name} must be true or false", name)
    return value


def _text(value: object, param: str) -> str:
    if not isinstance(value, str):
        raise RequestRefused(f"{param} must be text", param)
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise RequestRefused(f"{param} holds half of a character (a lone surrogate)", param) from error
    return value
