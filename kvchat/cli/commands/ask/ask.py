"""`kvchat ask`: one question, its answer on standard output, and an exit code that says how it went."""

import logging
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial

from kvchat.app.composition import EngineFactory, Kvchat, borrowed_or_started, opened, start_worker
from kvchat.app.config import EVICT, Settings
from kvchat.app.conversion.format_downgrade import compressed_format, go_on_in, wanted_formats
from kvchat.app.open_store import last_used, short_id
from kvchat.chat.conversation import Conversation
from kvchat.chat.events import ChatEvent, SampleEvent, TurnFinished, TurnStarted
from kvchat.chat.service import Chat
from kvchat.cli.commands.ask.answer_writers import (
    JsonWriter,
    NdjsonWriter,
    TextWriter,
    error_event,
    notice_event,
)
from kvchat.cli.commands.ask.candidates import CandidatesWriter
from kvchat.cli.commands.ask.options import AskOptions
from kvchat.cli.commands.ask.pack_use import chosen_pack, keep_again, mismatch, refuse_other_beginning
from kvchat.cli.commands.ask.prompt import piped_stdin, read_prompt
from kvchat.cli.commands.ask.strict_cache import StrictCacheCheck, edited_question
from kvchat.cli.output.engine_wait import own_turn, wait_until_loaded
from kvchat.cli.output.logs import start_log
from kvchat.cli.output.signals import StopRequested, StopSignals
from kvchat.cli.output.standard_streams import CLOSED_PIPE
from kvchat.cli.output.streams import Output, Status
from kvchat.cli.parser.options import refuse_several
from kvchat.engine.api.events import PrefillProgress
from kvchat.engine.api.sampling_params import SamplingParams
from kvchat.errors import CacheMissed, EngineFailed, KvchatError, PoolExhausted, StorageError, UsageError
from kvchat.session.packs import Pack
from kvchat.session.tree import Finish, SessionId
from kvchat.text.revision import edit_words

CUT_OFF = 8

log = logging.getLogger(__name__)


def ask(options: AskOptions) -> int:
    """Answer one question, or go on with an interrupted answer, and return the exit code."""
    refuse_several(
        {
            "-s": options.session is not None,
            "-c": options.continue_last,
            "--new": options.new is not None,
            "--temp": options.temp,
        }
    )
    pack, settings = chosen_pack(options.pack, options.system, options.settings())
    if options.edit is not None and not (options.session is not None or options.continue_last):
        raise UsageError("--edit changes a message of a session; name it with -s, or take the last with -c")
    if options.num > 1 and options.edit is not None:
        raise UsageError("-n gives several answers to a new question; leave out --edit")
    if options.strict_cache and settings.remote.url is not None:
        raise UsageError("what a server reuses cannot be known before; leave out --strict-cache, or --remote")
    # In a session that is there already, no question means: go on with the answer that was cut off.
    is_known = (options.session is not None or options.continue_last) and options.edit is None
    prompt = read_prompt(
        options.question or (), options.file or (), piped_stdin(), is_optional=is_known and options.num == 1
    )
    start_log(settings.paths, verbose=options.verbose)
    # What is to leave no trace is computed where nobody else looks.
    is_alone = options.no_attach or options.temp
    factory = start_worker if is_alone else borrowed_or_started(settings.paths.runtime_dir)
    return answer(options, settings, prompt, factory, pack)


def answer(
    options: AskOptions,
    settings: Settings,
    prompt: str,
    engine_factory: EngineFactory,
    pack: Pack | None = None,
) -> int:
    """Answer `prompt` with an engine from `engine_factory` and return the exit code.

    Args:
        pack: what a new conversation begins with, as `settings` do already.

    Effect: takes over SIGINT, SIGTERM and SIGHUP until it returns.
    """
    status, output = Status(quiet=options.quiet, color=settings.display.color), Output()
    with StopSignals() as signals:
        try:
            with opened(settings, engine_factory, temp=options.temp) as kvchat:
                question = _Question(options, settings, kvchat, (output, status), pack)
                code = question.run(prompt, signals)
            may_compress = not (options.temp or options.strict_cache) and settings.remote.url is None
            if code == 0 and may_compress and wanted_formats(settings.when_full):
                _compress(settings, status, signals, question.answered)
        except StopRequested:
            code = 0
            if (options.json or options.ndjson) and not output.has_ended:
                assert signals.exit_code is not None
                with suppress(BrokenPipeError, StorageError):
                    output.end(error_event("stopped before the answer began", signals.exit_code))
        except Exception as error:
            if not output.has_ended:
                raise
            code = _told_behind_the_end(error, status)
        status.clear()
        return signals.exit_code or code


def _compress(settings: Settings, status: Status, signals: StopSignals, answered: SessionId | None) -> None:
    """Keep unused conversations in fewer bits; a signal ends that, with the process that converts one."""
    from kvchat.app.retention.compress_unused import compress_unused

    signals.stop_with(None)
    try:
        if signals.exit_code is None:
            compress_unused(settings, status, answered)
    finally:
        signals.stop_with(lambda: None)  # the exit code alone tells of a signal at the very end


def _told_behind_the_end(error: Exception, status: Status) -> int:
    """Say what went wrong once the answer had been told whole; return the exit code."""
    if not isinstance(error, KvchatError):
        log.error("unexpected error", exc_info=error)
        status.note(f"kvchat: unexpected error ({type(error).__name__}) behind the answer; the log has it")
        return 1
    status.note(f"kvchat: {error}")
    return error.exit_code


class _Question:
    """One question on its way through an open kvchat.

    Attributes:
        answered: the session that it is asked in; None until that is known.
    """

    def __init__(
        self,
        options: AskOptions,
        settings: Settings,
        kvchat: Kvchat,
        streams: tuple[Output, Status],
        pack: Pack | None,
    ) -> None:
        self._options = options
        self._settings = settings
        self._kvchat = kvchat
        self._output, self._status = streams
        self._pack = pack
        self.answered: SessionId | None = None
        self._expected: StrictCacheCheck | None = None
        self._notices: list[str] = []
        self._is_cut_off = False

    def run(self, prompt: str, signals: StopSignals) -> int:
        store = self._kvchat.store
        reference = last_used(store) if self._options.continue_last else self._options.session
        if reference is None:
            return self._answer(None, prompt, signals)
        session = store.find(reference)
        if self._pack is not None:
            refuse_other_beginning(self._pack, session)
        with own_turn(store, self._settings.paths, session.id, self._status):
            return self._answer(session.id, prompt, signals)

    def _answer(self, reference: SessionId | None, prompt: str, signals: StopSignals) -> int:
        """Answer in a session, None: in a new one."""
        store = self._kvchat.store
        chat = self._load(reference)
        if reference is None:
            conversation = chat.create(title=self._options.new or "", system=self._settings.system)
        else:
            conversation = chat.open(reference)
        self.answered = conversation.session.id
        try:
            wait_until_loaded(self._kvchat.engine, self._status)
            if self._pack is not None:
                if chat.engine.info().fingerprint != self._pack.fingerprint:
                    raise mismatch(self._pack)
                keep_again(self._pack, self._settings)
            if self._options.strict_cache:
                self._expected = StrictCacheCheck(conversation, self._pack, self._options.edit)
                self._expected.check(chat)
            ask = self._pump if self._options.num == 1 else self._ask_several
            try:
                code = ask(chat, conversation, prompt, signals)
            except PoolExhausted as full:
                chat, conversation = self._in_another_format(full, chat, conversation)
                code = ask(chat, conversation, prompt, signals)
        except BaseException:
            # One that was there before keeps its title and its system prompt.
            if reference is None and not store.all_turns(conversation.session.id):
                store.delete_session(conversation.session.id)
            raise
        self._tell_problem()
        chat.close(conversation)
        if not self._options.temp:
            self._status.note(f"resume with: kvchat {short_id(store, conversation.session.id)}")
        return code

    def _load(self, reference: SessionId | None) -> Chat:
        model = self._options.model
        if model is None and reference is None and self._pack is not None:
            model = self._pack.model
        chat = self._kvchat.load(reference, model, self._options.adapter)
        if self._pack is not None:
            chat.beginnings[self._pack.text] = self._pack.created_at
        return chat

    def _in_another_format(
        self, full: PoolExhausted, chat: Chat, conversation: Conversation
    ) -> tuple[Chat, Conversation]:
        """Go on with an engine in another format where a conversation does not fit and that was chosen.

        Raises:
            PoolExhausted: it was not, or would not help.
        """
        cache_format = compressed_format(full, self._settings.when_full)
        is_there = cache_format == self._settings.engine.cache_format
        if cache_format is None or is_there or self._options.strict_cache:
            raise full
        self._status.show(f"no room: going on in {cache_format} …")
        chat.close(conversation)
        words = go_on_in(cache_format, self._kvchat, self._settings, conversation, chat.model)
        self._pass_on([words], cache_format)
        session_id = conversation.session.id
        chat = self._load(session_id)
        conversation = chat.open(session_id)
        wait_until_loaded(self._kvchat.engine, self._status)
        return chat, conversation

    def _pump(self, chat: Chat, conversation: Conversation, prompt: str, signals: StopSignals) -> int:
        """Write events until the turn has ended, also where nobody reads: what was computed is kept."""
        writer = self._writer(conversation)
        is_read = True
        missed: CacheMissed | None = None
        lost: StorageError | None = None
        last: ChatEvent | None = None
        for event in self._events(chat, conversation, prompt):
            if isinstance(event, TurnStarted):
                signals.stop_with(partial(chat.stop, conversation))
            last = event
            if self._is_to_go_on(event):
                continue
            if missed is None and (missed := self._missed(event)) is not None:
                chat.stop(conversation)
            try:
                if isinstance(event, TurnFinished):
                    self._pass_on(event.notices)
                if is_read and missed is None:
                    writer.take(event)
            except BrokenPipeError:
                is_read = False
                chat.stop(conversation)
            except StorageError as error:
                is_read, lost = False, error
                chat.stop(conversation)
        if (problem := missed or lost) is not None:
            raise problem
        assert isinstance(last, TurnFinished), "a turn ends with TurnFinished"
        return self._exit_code(last) if is_read else CLOSED_PIPE

    def _missed(self, event: ChatEvent | SampleEvent) -> CacheMissed | None:
        """Return what is wrong where less comes from the cache than was there: a block may be damaged."""
        if self._expected is None or not isinstance(event, PrefillProgress):
            return None
        return self._expected.missed(event.cached_tokens)

    def _ask_several(self, chat: Chat, conversation: Conversation, prompt: str, signals: StopSignals) -> int:
        answers = CandidatesWriter(
            self._options, self._output, self._status, missed=self._missed, stats=self._wants_stats
        )
        with conversation.stoppable():
            signals.stop_with(partial(chat.stop, conversation))
            turns, is_read = answers.run(chat, conversation, prompt)
        if not is_read:
            return CLOSED_PIPE
        is_cut_off = any(turn.finish is Finish.LENGTH for turn in turns)
        return CUT_OFF if self._options.fail_on_length and is_cut_off else 0

    @property
    def _wants_stats(self) -> bool:
        return self._settings.display.stats and not self._options.quiet

    def _events(self, chat: Chat, conversation: Conversation, prompt: str) -> Iterator[ChatEvent]:
        if self._is_cut_off:
            return chat.continue_answer(conversation, _rest_of(chat.sampling, conversation))
        if not prompt:
            return chat.continue_answer(conversation)
        if self._options.edit is None:
            return chat.send(conversation, prompt)
        question = edited_question(conversation.turns, self._options.edit)
        self._status.note(edit_words(chat.edit_cost(conversation, question.id, prompt)))
        return chat.edit(conversation, question.id, prompt)

    def _exit_code(self, last: TurnFinished) -> int:
        if self._is_to_go_on(last):
            self._is_cut_off = True
            raise PoolExhausted(last.error or "", last.fits_in)
        if last.error is not None:
            raise EngineFailed(last.error)
        return CUT_OFF if self._options.fail_on_length and last.answer.finish is Finish.LENGTH else 0

    def _is_to_go_on(self, event: ChatEvent) -> bool:
        """Whether an answer broke off for want of room, and that is not the end of it."""
        is_full = isinstance(event, TurnFinished) and bool(event.fits_in)
        return is_full and self._settings.when_full != EVICT

    def _pass_on(self, notices: Iterable[str], cache_format: str | None = None) -> None:
        """Tell what a person should know before the answer ends, see `notice_event`."""
        for words in notices:
            self._status.note(words)
            self._notices.append(words)
            if self._options.ndjson:
                self._output.json(notice_event(words, cache_format))

    def _tell_problem(self) -> None:
        for words in self._kvchat.store.take_notices():
            self._status.note(words)
        snapshot = self._kvchat.engine.snapshot()
        if snapshot is not None and snapshot.problem is not None:
            self._status.note(f"KV is not saved: {snapshot.problem}")

    def _writer(self, conversation: Conversation) -> TextWriter | JsonWriter | NdjsonWriter:
        if self._options.ndjson:
            return NdjsonWriter(self._output, conversation)
        if self._options.json:
            return JsonWriter(self._output, self._status, conversation.session, self._notices)
        return TextWriter(self._output, self._status, conversation.session, stats=self._wants_stats)


def _rest_of(sampling: SamplingParams, conversation: Conversation) -> SamplingParams:
    """Return sampling that ends the answer that broke off where it would have ended at once."""
    num_there = len(conversation.turns[-1].token_ids or ())
    most = None if sampling.max_tokens is None else max(1, sampling.max_tokens - num_there)
    return replace(sampling, max_tokens=most)
