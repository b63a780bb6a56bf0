"""One answer on its way to standard output: as text, as one JSON object, or as an event per line."""

from collections.abc import Sequence
from dataclasses import asdict

from kvchat.chat.conversation import Conversation
from kvchat.chat.events import ChatEvent, TurnFinished, TurnStarted
from kvchat.cli.output.streams import Output, Status
from kvchat.engine.api.events import LoadPlanned, PrefillProgress
from kvchat.errors import KvchatError
from kvchat.session.kv.provenance import is_imported
from kvchat.session.template.text_stream import Piece
from kvchat.session.tree import Finish, Session, Turn
from kvchat.text.answer_footer import SEPARATOR, PrefillEta, footer_parts, loading_parts
from kvchat.text.figures import count_text, guesses_text, rate_text, seconds_text
from kvchat.text.trust import exactness_words

_VERSION = 1

_FINISH_REASONS = {
    Finish.COMPLETE: "stop",
    Finish.LENGTH: "length",
    Finish.INTERRUPTED: "cancelled",
    Finish.PARTIAL: "cancelled",
    Finish.ERROR: "error",
}


class TextWriter:
    """The answer alone on standard output; progress and what it cost on standard error."""

    def __init__(self, output: Output, status: Status, session: Session, *, stats: bool) -> None:
        self._session = session
        self._output = output
        self._status = status
        self._stats = stats
        self._eta = PrefillEta()
        self._last = "\n"

    def take(self, event: ChatEvent) -> None:
        match event:
            case LoadPlanned(estimate=estimate) if parts := loading_parts(estimate):
                self._status.show(SEPARATOR.join(parts))
            case PrefillProgress():
                self._status.show(prefill_words(event, self._eta))
            case Piece(reasoning=True):
                self._output.check()
                self._status.aside(event.text)
            case Piece():
                self._status.clear()
                self._output.write(event.text)
                self._last = event.text[-1:] or self._last
            case TurnFinished():
                self._finish(event)

    def _finish(self, event: TurnFinished) -> None:
        self._status.clear()
        if self._last != "\n":
            self._output.write("\n")
        if self._stats and event.error is None:
            self._status.note(describe_cost(event.answer, self._session))


class JsonWriter:
    """One object when the answer has ended: the `done` event and the text."""

    def __init__(self, output: Output, status: Status, session: Session, notices: Sequence[str] = ()) -> None:
        self._output = output
        self._status = status
        self._session = session
        self._notices = notices
        self._eta = PrefillEta()

    def take(self, event: ChatEvent) -> None:
        self._output.check()
        match event:
            case PrefillProgress():
                self._status.show(prefill_words(event, self._eta))
            case Piece():
                self._status.clear()
            case TurnFinished(error=None):
                done = done_event(event.answer, self._session)
                texts: dict[str, object] = {"text": event.answer.text}
                if event.answer.reasoning:
                    texts["reasoning"] = event.answer.reasoning
                if self._notices:
                    texts["notices"] = list(self._notices)
                self._output.end(done | texts)


class NdjsonWriter:
    """An event per line; `done` or `error` is the last one."""

    def __init__(self, output: Output, conversation: Conversation) -> None:
        self._output = output
        self._conversation = conversation

    def take(self, event: ChatEvent) -> None:
        match event:
            case TurnStarted():
                session = self._conversation.session
                self._write("start", session=session.id, title=session.title, turn=event.answer.id)
            case LoadPlanned(estimate=estimate):
                self._write("loading", **asdict(estimate))
            case PrefillProgress():
                values = asdict(event)
                del values["request_id"], values["sequence"]  # the engine's own affair
                self._write("prefill", **values)
            case Piece():
                self._write("reasoning" if event.reasoning else "text", text=event.text)
            case TurnFinished(error=None):
                self._output.end(done_event(event.answer, self._conversation.session))

    def _write(self, name: str, **values: object) -> None:
        self._output.json(event_of(name, **values))


def prefill_words(event: PrefillProgress, eta: PrefillEta) -> str:
    """Return how far a prompt is, and how long the rest takes at the speed that `eta` has seen so far."""
    new_tokens = event.prompt_tokens - event.cached_tokens
    text = f"reused {count_text(event.cached_tokens)} · new {count_text(new_tokens)}"
    left_s = eta.left_s(event)
    return text if left_s is None else f"{text} · {seconds_text(left_s)} left"


def event_of(name: str, **values: object) -> dict[str, object]:
    """Return an event as plain values."""
    return {"v": _VERSION, "event": name} | values


def done_event(answer: Turn, session: Session) -> dict[str, object]:
    """Return the last event of an answer."""
    return event_of(
        "done",
        finish_reason=_FINISH_REASONS[answer.finish],
        **_figures(answer),
        timings=asdict(answer.timings),
        model=answer.model,
        session=session.id,
        turn=answer.id,
        exact=answer.exact and not session.namespace,
        verified=not is_imported(session) and answer.backend is None,
    )


def _figures(answer: Turn) -> dict[str, object]:
    """Return what was reused and computed; null where a server does not say it."""
    usage = asdict(answer.usage)
    if answer.backend is None:
        return {"usage": usage, "loaded": asdict(answer.loaded)}
    if not answer.backend.counts_tokens:
        usage = dict.fromkeys(usage)
    elif not answer.backend.counts_cached:
        usage |= {"cached_tokens": None, "computed_tokens": None}
    return {"usage": usage, "loaded": None, "backend": answer.backend.url}


def notice_event(message: str, cache_format: str | None = None) -> dict[str, object]:
    """Return what a person should know; `cache_format`: in which a conversation goes on, if in another one
    than it was asked for in.
    """
    told = event_of("notice", message=message)
    return told if cache_format is None else told | {"cache_format": cache_format}


def error_event(error: KvchatError | str, exit_code: int) -> dict[str, object]:
    """Return the last event where there is no answer."""
    kind = type(error).__name__ if isinstance(error, KvchatError) else "Error"
    return event_of("error", error=kind, message=str(error), exit_code=exit_code)


def describe_cost(answer: Turn, session: Session) -> str:
    """Return one line on what was reused and computed, how fast it went, and how it ended if too early."""
    parts = _own_cost(answer, session) if answer.backend is None else [*footer_parts(answer)]
    if answer.finish is not Finish.COMPLETE:
        parts.append(_ENDINGS.get(answer.finish, answer.finish.value))
    return SEPARATOR.join(parts)


def _own_cost(answer: Turn, session: Session) -> list[str]:
    """Return what an engine of ours has reused and computed."""
    usage, loaded, timings = answer.usage, answer.loaded, answer.timings
    parts = [f"reused {count_text(usage.cached_tokens)} of {count_text(usage.prompt_tokens)} tokens"]
    if loaded.disk:
        parts[0] += f" ({count_text(loaded.disk)} from disk)"
    parts.append(f"computed {count_text(usage.computed_tokens)}")
    if timings.ttft_s is not None:
        parts.append(f"{seconds_text(timings.ttft_s)} to first token")
    if timings.decode_tokens_per_s is not None:
        parts.append(rate_text(timings.decode_tokens_per_s))
    if usage.drafted_tokens:
        parts.append(guesses_text(usage.accepted_tokens, usage.drafted_tokens))
    return [*parts, exactness_words(answer, session)]


_ENDINGS = {Finish.LENGTH: "cut off by its length", Finish.INTERRUPTED: "interrupted"}
