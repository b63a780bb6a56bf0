"""Messages to token ids, append-only: ids that the model has seen never change.

A chat template renders a whole conversation. Rendering it again each turn would give other ids for old
answers: templates trim them, drop reasoning, move the system prompt, and decode-then-encode is not the
identity. So only what follows the last answer is taken from a rendering and encoded, and its ids are put
behind those that exist.

Source: the recipe needs only what the published templates of ChatML, Llama 3, Gemma, Mistral and Qwen have in
common: an answer's content appears in the rendering, and the new message behind it.
"""

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import jinja2

from kvchat.errors import ModelUnreadable, UnsupportedModel
from kvchat.session.template.jinja import JinjaTemplate, TemplateRefusal
from kvchat.session.template.text_stream import StopStrings, TextStream
from kvchat.session.template.tokenizer import ANSWER_MARK, ChatTokenizer
from kvchat.session.tree import Role, num_common

SYSTEM = "system"

_PLAIN_TEMPLATE = """\
{% for message in messages %}
{% if message.role == 'system' %}
{{ message.content + '\\n\\n' }}
{%- elif message.role == 'user' %}
{{ 'User: ' + message.content + '\\n' }}
{%- else %}
{{ 'Assistant: ' + message.content + '\\n' }}
{%- endif %}
{% endfor %}
{% if add_generation_prompt %}Assistant:{% endif %}"""
_PLAIN_STOPS = ("\nUser:",)
_PLAIN_WARNING = (
    "this model has no chat template, so it may not be made for chatting; "
    "messages are written as 'User: …' and 'Assistant: …'"
)
_MERGED_WARNING = "this model's template takes no system prompt; it is put before the first message"
_TOKEN_NAMES = ("bos_token", "eos_token", "pad_token", "unk_token")
_EPOCH = datetime(2000, 1, 1)
_EXCERPT_LEN = 60


@dataclass(frozen=True, slots=True)
class Message:
    """One message for the template. `role`: `system`, `user` or `assistant`."""

    role: str
    content: str
    reasoning: str = ""


class ChatTemplate:
    """The chat template and the tokenizer of one model.

    Args:
        jinja: the template; None: a plain default with `User:` and `Assistant:`.
        end_ids: end-of-turn ids from the model's configuration.
    """

    def __init__(
        self, tokenizer: ChatTokenizer, jinja: JinjaTemplate | None, end_ids: frozenset[int] = frozenset()
    ) -> None:
        self.tokenizer = tokenizer
        self.is_plain = jinja is None
        self.stop_strings: tuple[str, ...] = _PLAIN_STOPS if jinja is None else ()
        self._jinja = jinja or JinjaTemplate(_PLAIN_TEMPLATE, {})
        self._takes_system = self._can_render([Message(SYSTEM, "a"), Message(Role.USER, "b")])
        self.end_ids = end_ids | self._template_end()

    @classmethod
    def from_dir(cls, model_dir: Path) -> "ChatTemplate":
        """Read tokenizer and template of a model directory, without torch or transformers.

        Raises:
            UnsupportedModel: there is no tokenizer.json.
            ModelUnreadable: a file is damaged.
        """
        config = _read_json(model_dir / "tokenizer_config.json")
        source, file = _template_source(model_dir, config)
        tokenizer = ChatTokenizer.from_dir(model_dir, markup=source or "")
        names = _token_names(model_dir, config)
        jinja = None if source is None else _compile(source, names, file)
        return cls(tokenizer, jinja, _configured_ends(model_dir, names, tokenizer))

    @property
    def warnings(self) -> tuple[str, ...]:
        """What a person should know of this template."""
        plain = (_PLAIN_WARNING,) if self.is_plain else ()
        return plain if self._takes_system else (*plain, _MERGED_WARNING)

    def whole(self, history: Sequence[Message], text: str, *, now: datetime = _EPOCH) -> list[int]:
        """Return the ids of a whole conversation rendered from its texts, a new question last.

        For a first question, and a past that has no ids, or another tokenizer's; where there are ids, use
        `following`.

        Args:
            now: what the template is told the time is; give the conversation's start.
        """
        rendered = self._rendered([*history, Message(Role.USER, text)], now)
        leading = list(self.tokenizer.leading_ids) if self.is_plain else []
        return leading + self.tokenizer.encode(rendered)

    def following(
        self, history: Sequence[Message], text: str, answer_ids: Sequence[int], *, now: datetime = _EPOCH
    ) -> list[int]:
        """Return the ids that put a question behind an existing answer: glue, question, opening of the
        answer. An end of turn, or a stop string, that was sampled behind the answer's text is not repeated.

        Args:
            history: the messages so far, an answer last.
            answer_ids: that answer's.

        Raises:
            UnsupportedModel: the template leaves out earlier answers, so nothing can be put behind them.
        """
        assert history
        assert history[-1].role == Role.ASSISTANT
        behind = self._behind_answer(history, text, now)
        if not self.is_closed(answer_ids):
            ended_with = self._ended_with(answer_ids, history[-1].content)
            return self.tokenizer.encode(behind[num_common(ended_with, behind) :])
        end = self._end_at_start(behind)
        return self.tokenizer.encode(behind.lstrip()[len(end) :] if end else behind, after=end)

    def history_rewrite(self, history: Sequence[Message]) -> str | None:
        """Say where the template shows the model another past than it saw, once a further question comes.

        The ids stay as they were, so reuse is exact; the model sees its own words, not the template's.

        Args:
            history: the messages so far, an answer last.
        """
        if self.is_plain or not history or history[-1].role != Role.ASSISTANT:
            return None
        with suppress(UnsupportedModel):
            return self._rewrite(history)
        return None

    def is_closed(self, token_ids: Sequence[int]) -> bool:
        """Return whether an answer's ids end with an end-of-turn id."""
        return bool(token_ids) and token_ids[-1] in self.end_ids

    def _ended_with(self, token_ids: Sequence[int], text: str) -> str:
        """Return the raw text that an answer's ids hold behind the text that was shown."""
        raw = self.tokenizer.decode(token_ids, keep_control=True)
        at = raw.rfind(text) if text else 0
        return raw[at + len(text) :] if at >= 0 else ""

    def stream(
        self, prompt_ids: Sequence[int], so_far: Sequence[int] = (), *, stops: Sequence[str] | None = None
    ) -> TextStream:
        """Return the text stream of the answer to a prompt, behind the tokens it has already.

        Args:
            stops: strings before which the text ends; None: the template's.
        """
        stream = TextStream(
            self.tokenizer,
            reasoning=self._opens_reasoning(prompt_ids),
            trims_start=self.is_plain,
            stop_strings=self.stop_strings if stops is None else stops,
        )
        stream.resume(so_far)
        return stream

    def stop_matcher(
        self, prompt_ids: Sequence[int], so_far: Sequence[int] = (), *, stops: Sequence[str] | None = None
    ) -> StopStrings | None:
        """Return the matcher for a request of the stop strings that `stream` takes; None without any."""
        if not (self.stop_strings if stops is None else stops):
            return None
        return StopStrings(self.stream(prompt_ids, so_far, stops=stops), len(prompt_ids))

    def _opens_reasoning(self, prompt_ids: Sequence[int]) -> bool:
        think = self.tokenizer.think_ids
        last = next((token for token in reversed(prompt_ids) if think and token in think), None)
        return think is not None and last == think[0]

    def _rewrite(self, history: Sequence[Message]) -> str | None:
        answer = history[-1]
        thought = f"<think>\n{answer.reasoning}\n</think>\n\n" if answer.reasoning else ""
        content = thought + answer.content
        later = [*history[:-1], Message(Role.ASSISTANT, content), Message(Role.USER, "…")]
        # Unguarded: a template looks for the marks of reasoning.
        asked = self._rendered(history[:-1], _EPOCH, guards=False)
        if asked.rstrip().endswith("<think>"):
            content = content.removeprefix("<think>\n")
        return _difference((asked + content).rstrip(), self._rendered(later, _EPOCH, guards=False))

    def _behind_answer(self, history: Sequence[Message], text: str, now: datetime) -> str:
        messages = [*history[:-1], Message(Role.ASSISTANT, ANSWER_MARK), Message(Role.USER, text)]
        behind = self._after_mark(messages, now)
        first = history[0]
        if first.role == SYSTEM and self.tokenizer.guarded(first.content).strip() in behind:
            # The template moved the system prompt to the newest question; the model has seen it where it was.
            behind = self._after_mark(messages[1:], now)
        return behind

    def _after_mark(self, messages: Sequence[Message], now: datetime) -> str:
        _, mark, behind = self._rendered(messages, now).rpartition(ANSWER_MARK)
        if not mark:
            raise UnsupportedModel("this model's chat template leaves out earlier answers; use another model")
        return behind

    def _end_at_start(self, text: str) -> str:
        """Return the end-of-turn token that rendered text starts with, blanks aside, or an empty string."""
        control = self.tokenizer.control_text(text.lstrip())
        return control if self.tokenizer.id_of(control) in self.end_ids else ""

    def _template_end(self) -> frozenset[int]:
        """Return the id with which the template itself ends an answer, where it is a control token."""
        messages = [Message(Role.USER, "a"), Message(Role.ASSISTANT, ANSWER_MARK)]
        with suppress(TemplateRefusal):
            rendered = self._jinja.render(self._plain(messages), opens_answer=False, now=_EPOCH)
            control = self.tokenizer.control_text(rendered.rpartition(ANSWER_MARK)[2].lstrip())
            end = self.tokenizer.id_of(control)
            return frozenset() if end is None else frozenset((end,))
        return frozenset()

    def _rendered(self, messages: Sequence[Message], now: datetime, *, guards: bool = True) -> str:
        """Return the text of messages, ended by the opening of an answer."""
        taken = messages if self._takes_system else _merged(messages)
        try:
            return self._jinja.render(self._plain(taken, guards=guards), opens_answer=True, now=now)
        except TemplateRefusal as error:
            raise UnsupportedModel(
                f"this model's chat template refuses the conversation ({error}); use another model"
            ) from error

    def _can_render(self, messages: Sequence[Message]) -> bool:
        try:
            self._jinja.render(self._plain(messages), opens_answer=True, now=_EPOCH)
        except TemplateRefusal:
            return False
        return True

    def _plain(self, messages: Sequence[Message], *, guards: bool = True) -> list[dict[str, str]]:
        return [
            {"role": str(message.role), "content": self._content(message) if guards else message.content}
            for message in messages
        ]

    def _content(self, message: Message) -> str:
        marks = message.content == ANSWER_MARK
        return ANSWER_MARK if marks else self.tokenizer.guarded(message.content)


def _merged(messages: Sequence[Message]) -> list[Message]:
    """Return messages with the system prompt put before the first question."""
    if len(messages) < 2 or messages[0].role != SYSTEM:
        return list(messages)
    first = Message(Role.USER, f"{messages[0].content}\n\n{messages[1].content}")
    return [first, *messages[2:]]


def _difference(was: str, now: str) -> str | None:
    at = num_common(was, now)
    if at == len(was):
        return None
    was, becomes = was[at : at + _EXCERPT_LEN], now[at : at + _EXCERPT_LEN]
    return (
        f"this model's template would rewrite the past ({was!r} would become {becomes!r}); "
        "kvchat keeps what the model saw"
    )


def _template_source(model_dir: Path, config: dict[str, Any]) -> tuple[str | None, Path]:
    """Return the template's text, None where the model has none, and the file it is from."""
    file = model_dir / "chat_template.jinja"
    if file.is_file():
        return _read_text(file), file
    file = model_dir / "chat_template.json"
    found = _read_json(file).get("chat_template") or config.get("chat_template")
    if isinstance(found, list):
        named = {one.get("name"): one.get("template") for one in found if isinstance(one, dict)}
        found = named.get("default") or next(iter(named.values()), None)
    return (found if isinstance(found, str) else None), model_dir / "tokenizer_config.json"


def _compile(source: str, names: dict[str, str], file: Path) -> JinjaTemplate:
    try:
        return JinjaTemplate(source, names)
    except jinja2.TemplateError as error:
        raise ModelUnreadable(
            f"the chat template in {file} cannot be read ({error}); download the model again"
        ) from error


def _token_names(model_dir: Path, config: dict[str, Any]) -> dict[str, str]:
    """Return the tokens that templates call by name, such as `bos_token`."""
    known = _read_json(model_dir / "special_tokens_map.json") | config
    names = {}
    for name in _TOKEN_NAMES:
        token = known.get(name)
        content = token.get("content") if isinstance(token, dict) else token
        if isinstance(content, str):
            names[name] = content
    return names


def _configured_ends(model_dir: Path, names: dict[str, str], tokenizer: ChatTokenizer) -> frozenset[int]:
    ends = {tokenizer.id_of(names["eos_token"])} if "eos_token" in names else set()
    for name in ("generation_config.json", "config.json"):
        value = _read_json(model_dir / name).get("eos_token_id")
        ends.update(value if isinstance(value, list) else [value])
    return frozenset(end for end in ends if isinstance(end, int))


def _read_json(file: Path) -> dict[str, Any]:
    """Return what a JSON file holds; nothing where there is no such file."""
    if not file.is_file():
        return {}
    try:
        data = json.loads(_read_text(file))
    except ValueError as error:
        raise ModelUnreadable(f"{file} is not JSON ({error}); download the model again") from error
    return data if isinstance(data, dict) else {}


def _read_text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ModelUnreadable(
            f"{file} cannot be read ({error}); check it, or download the model again"
        ) from error
