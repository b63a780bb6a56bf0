"""Chat completion request: the body of a request, read into a value or refused with the field's name.

Fields follow OpenAI's chat completions; `top_k`, `min_p` and `repetition_penalty` are vLLM's. Unsupported
fields that would change the answer (tools, pictures, several answers) are refused; others are ignored.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from kvchat.engine.api.sampling_params import SamplingParams
from kvchat.errors import InvalidRequest
from kvchat.session.template.chat_template import SYSTEM, Message
from kvchat.session.tree import Role

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
    """One chat completion: what was said before, and the last message, a user's.

    `stops`: strings before which the answer ends; `wants_usage`: a stream ends with what it cost.
    """

    model: str
    history: tuple[Message, ...]
    question: str
    sampling: SamplingParams
    stops: tuple[str, ...] = ()
    stream: bool = False
    wants_usage: bool = False


class _Part(Struct, frozen=True):
    type: Literal["text"]
    text: str


class _Message(Struct, frozen=True):
    role: Literal["system", "developer", "user", "assistant"]
    content: str | tuple[_Part, ...]
    tool_calls: Any = None

    @property
    def text(self) -> str:
        return self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)


class _StreamOptions(Struct, frozen=True):
    include_usage: bool | None = None


class _Body(Struct, frozen=True, kw_only=True):
    model: str
    messages: Annotated[tuple[_Message, ...], Meta(min_length=1)]
    stream: bool | None = None
    stream_options: _StreamOptions | None = None
    stop: str | Annotated[tuple[str, ...], Meta(max_length=16)] | None = None


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
    try:
        read = msgspec.convert(body, _Body)
    except msgspec.ValidationError as error:
        raise _refusal(str(error)) from error
    messages = _messages(read.messages)
    stops = (read.stop,) if isinstance(read.stop, str) else read.stop or ()
    return ChatCompletionRequest(
        model=_whole(read.model, "model"),
        history=messages[:-1],
        question=messages[-1].content,
        sampling=_sampling(body, defaults),
        stops=tuple(_whole(stop, "stop") for stop in stops if stop),
        stream=bool(read.stream),
        wants_usage=read.stream_options is not None and bool(read.stream_options.include_usage),
    )


def _refusal(reason: str) -> RequestRefused:
    """Return the error for what msgspec says, with the field that it names: `messages.0.content`."""
    found = re.fullmatch(r"(.*?)(?: - at `\$\.(.*)`)?", reason, re.DOTALL)
    assert found is not None
    words, path = found[1], found[2]
    missing = re.search("missing required field `(.*)`", words)
    names = [re.sub(r"\[(\w+)\]", r".\1", path)] if path else []
    param = ".".join([*names, *([missing[1]] if missing else [])])
    return RequestRefused(f"{param}: {words}" if param else words, param or None)


def _messages(read: tuple[_Message, ...]) -> tuple[Message, ...]:
    messages = []
    for at, one in enumerate(read):
        if one.tool_calls:
            raise RequestRefused("tools are not supported", f"messages.{at}.tool_calls")
        messages.append(Message(_ROLES[one.role], _whole(one.text, f"messages.{at}.content")))
    if messages[-1].role != Role.USER:
        raise RequestRefused("the last message must be the user's", "messages")
    before = None
    for at, message in enumerate(messages):
        if message.role == SYSTEM and at:
            raise RequestRefused("a system message can only be the first", f"messages.{at}")
        if message.role == before or (message.role == Role.ASSISTANT and before != Role.USER):
            raise RequestRefused("user and assistant must take turns, the user first", f"messages.{at}")
        before = message.role
    return tuple(messages)


def _sampling(body: Mapping[str, Any], defaults: SamplingParams) -> SamplingParams:
    given = {name: body[name] for name in _SAMPLING if body.get(name) is not None}
    limits = [body[name] for name in ("max_completion_tokens", "max_tokens") if body.get(name) is not None]
    if limits:
        given["max_tokens"] = limits[0]
    if given.get("top_k") in (-1, 0):  # vLLM's ways to say none
        given["top_k"] = None
    return replace(defaults, **given)


def _whole(text: str, param: str) -> str:
    """Return a text that holds no half of a character."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise RequestRefused(f"{param} holds half of a character (a lone surrogate)", param) from error
    return text
