"""Chat service: one turn of a conversation, with session and engine in and chat events out.

The interface and the command line call it. It knows the engine only as `EngineClient`, so it runs with torch
absent, and the session only through the store and the template. Token ids and text reach the database before
they are yielded.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial

from kvchat.chat.candidates.service import DIFFERING_TEMPERATURE, CandidateService, differing
from kvchat.chat.conversation import BEHIND, ON_SCREEN, Answering, Conversation, Undo
from kvchat.chat.engine_client import EngineClient
from kvchat.chat.events import ChatEvent, EditCost, Revision
from kvchat.chat.opening_notices import notices_of
from kvchat.chat.revision import (
    context_ids,
    copy_behind,
    path_cost,
    plan_drop,
    plan_undo,
    split_at,
    to_last_question,
)
from kvchat.engine.api.sampling_params import SamplingParams
from kvchat.errors import KvchatError, StorageError, UsageError
from kvchat.session import digest_repair
from kvchat.session.cache_miss import Explanation
from kvchat.session.explanation import explained
from kvchat.session.kv.provenance import namespace_of
from kvchat.session.store import Outcome, SessionStore
from kvchat.session.template import prompts
from kvchat.session.template.chat_template import ChatTemplate
from kvchat.session.tree import MAIN, Branch, BranchName, Finish, Session, Turn, TurnId, path_token_ids


class Chat:
    """Conversations with one model.

    The verbs that answer (`send`, `continue_answer`, `retry`, `edit`) are generators: nothing happens before
    the first event is taken, and whoever stops taking them closes the generator (`contextlib.closing`), which
    stops the model and keeps what was sampled as an interrupted answer. Every error they raise leaves the
    store consistent:

        CapacityError, InvalidRequest   refused: the question is taken back, and the caller still has its text
        StorageError                    the answer is stopped; all that was shown is stored
        other KvchatError               question and answer so far are stored, the answer with ERROR

    An engine that dies ends the answer with `TurnFinished(error=...)`.

    Args:
        engine: loaded or still loading.
        model: the model's name, stored with every answer.
        sampling: used where a call brings none.
        adapter: the directory of the LoRA that the engine is loaded with; empty for none.
    """

    def __init__(
        self,
        *,
        store: SessionStore,
        template: ChatTemplate,
        engine: EngineClient,
        model: str,
        sampling: SamplingParams | None = None,
        adapter: str = "",
    ) -> None:
        self.store = store
        self.engine = engine
        self.beginnings: dict[str, float] = {}  # since when a system prompt counts as said: that of a pack
        self.sampling = sampling or SamplingParams()
        self.use(template, model, adapter)

    def use(self, template: ChatTemplate, model: str, adapter: str = "") -> None:
        """Go on with another model, which the engine has loaded or begins to load. No answer is in progress,
        and conversations are opened again: their live branches were the other model's.
        """
        self.template = template
        self.model = model
        self.adapter = adapter
        self._answering = Answering(store=self.store, template=template, engine=self.engine, model=model)
        self.variants = CandidateService(self._answering)

    def use_sampling(self, sampling: SamplingParams) -> None:
        self.sampling = sampling

    @property
    def retry_temperature(self) -> float | None:
        """What another answer is sampled at where the settings give the same again; None: as they say."""
        return None if self.sampling.temperature else DIFFERING_TEMPERATURE

    # Conversations

    def create(self, title: str = "", system: str = "") -> Conversation:
        """Start a session. Raises SessionExists if the title is taken."""
        began_at = self.beginnings.get(system)
        session = self.store.create_session(title=title, system=system, model=self.model, began_at=began_at)
        return Conversation(session, self.store.branch(session.id, MAIN), ())

    def open(self, reference: str, branch: str | None = None) -> Conversation:
        """Open a session at a branch (None: the one used last).

        An answer that a killed process left is interrupted from now on. One that another process is writing
        is not part of this conversation, and neither is its question: what is sent here goes to a branch
        beside it.

        Raises:
            SessionNotFound, SessionAmbiguous: see `SessionStore.find`.
        """
        session = self.store.find(reference)
        # Reading tells it all the same; a full disk must not keep a conversation from opening.
        with suppress(StorageError):
            self.store.settle(session.id)
        found = self.store.branch(session.id, branch or session.active_branch)
        turns = self.store.turns_to(found.leaf_id)
        with suppress(StorageError):
            turns = self._mended(session, turns)
        if turns and turns[-1].finish is Finish.PARTIAL:
            turns = turns[:-2]
            found = replace(found, leaf_id=turns[-1].id if turns else None)
        conversation = Conversation(session, found, turns)
        self._prefetch(conversation, None)
        return conversation

    def open_at(self, turn_id: TurnId) -> Conversation:
        """Open the branch that a turn lies on; a new one where none leads there any more.

        Raises:
            SessionNotFound: the turn was deleted.
        """
        turn = self.store.turn(turn_id)
        branch = self.store.branch_through(turn_id)
        if branch is None:
            branch = self.store.create_branch(turn.session_id, leaf_id=turn_id)
        return self.open(turn.session_id, branch.name)

    def prefetch(
        self, reference: str | None, branch: str | None = None, beside: Conversation | None = None
    ) -> None:
        """Begin to load what is stored of a session, because it may be opened next; None: of no session.

        Args:
            beside: the conversation on screen, whose blocks must not make room for it.
        """
        if reference is None:
            self.engine.prefetch(())
            return
        session = self.store.find(reference)
        found = self.store.branch(session.id, branch or session.active_branch)
        self._prefetch(Conversation(session, found, self.store.turns_to(found.leaf_id)), beside)

    def _rank(self, conversation: Conversation, priority: int) -> None:
        """Tell the engine how important a conversation is, at work or idle."""
        conversation.priority = priority
        if conversation.engine_sequence is not None:
            self.engine.prioritise_sequence(conversation.engine_sequence, priority)

    def _prefetch(self, conversation: Conversation, beside: Conversation | None) -> None:
        spared = beside.token_ids if beside is not None else None
        namespace = namespace_of(conversation.session, conversation.turns)
        self.engine.prefetch(conversation.token_ids or (), beside=spared or (), namespace=namespace)

    def fork(
        self, conversation: Conversation, at: TurnId | None = None, name: str | None = None
    ) -> Conversation:
        """Open a new branch that shares everything up to a turn (None: the last one).

        At the last turn the live branch of the engine is forked too; elsewhere the engine finds the shared
        blocks.

        Raises:
            UsageError: the name is taken, or the answer there is still being written.
        """
        path = conversation.turns if at is None else self.store.turns_to(at)
        if path and path[-1].finish is Finish.PARTIAL:
            raise UsageError("this answer is still being written; stop it or wait for its end, then fork")
        leaf_id = path[-1].id if path else None
        branch = self.store.create_branch(
            conversation.session.id, leaf_id=leaf_id, name=name or "", beside=conversation.branch.name
        )
        forked = Conversation(self.store.session(conversation.session.id), branch, path)
        live = conversation.engine_sequence
        if live is not None and not conversation.is_busy and leaf_id == conversation.branch.leaf_id:
            with suppress(KvchatError):
                forked.engine_sequence = self.engine.fork(live)
        return forked

    def stop(self, conversation: Conversation) -> None:
        """Ask for the end of the answer in progress, from any thread; its iterator ends as INTERRUPTED."""
        conversation.stop()

    def put_behind(self, conversation: Conversation) -> None:
        """Note that a conversation has left the screen: what it computes makes way for the one that is on."""
        self._rank(conversation, BEHIND)

    def bring_forward(self, conversation: Conversation) -> None:
        """Note that a conversation is on screen: what it computes goes first."""
        self._rank(conversation, ON_SCREEN)

    def close(self, conversation: Conversation) -> None:
        """Stop the answer in progress and let go of the live branch; its blocks stay cached."""
        conversation.is_closed = True
        self.stop(conversation)
        # A branch that is being written is let go by its answer, when that has ended.
        if not conversation.is_busy:
            self._answering.release(conversation)

    # Revisions

    def plan_undo(self, conversation: Conversation, num: int = 1) -> Revision:
        """Return the revision without the last `num` exchanges."""
        return plan_undo(conversation.turns, num, self._keeper(conversation.branch))

    def plan_drop(self, conversation: Conversation, question_id: TurnId) -> Revision:
        """Return the revision without one exchange; see `plan_drop`."""
        copy = partial(self._behind, conversation.session)
        plan = plan_drop(conversation.turns, question_id, conversation.branch.name, copy)
        return plan if plan.anew else self.plan_undo(conversation)

    def revision_cost(self, conversation: Conversation, revision: Revision) -> EditCost:
        """Return exactly what a revision costs now. Waits for the engine.

        Nothing is computed before the next message is sent; `computed_tokens` come before its own then.
        """
        session, path = conversation.session, revision.path
        ids = context_ids(self.template, session, path)
        # A prompt is never reused to its last token, so one more stands for the next message.
        probed = self.engine.reusable_len((*ids, ids[-1]), namespace_of(session, path)) if ids else 0
        return path_cost(len(ids), min(probed, len(ids)), revision.left)

    def revise(self, conversation: Conversation, revision: Revision) -> None:
        """Make a revision. The old path stays on a branch.

        Raises:
            UsageError: an answer is being written, or the conversation has gone on since this was planned.
        """
        with conversation.occupied():
            if conversation.turns != revision.before:
                raise UsageError("the conversation has gone on since; look at what it costs now")
            before, leaf_id = conversation.branch, revision.kept[-1].id if revision.kept else None
            if revision.anew:
                # To the store this branch has moved on meanwhile: the turns go to a new one beside it.
                branch = self.store.add_turns(replace(before, leaf_id=leaf_id), revision.anew)
            elif self._keeper(before) != before.name:
                branch = self.store.set_leaf(before, leaf_id)
            else:
                branch = self.store.create_branch(before.session_id, leaf_id=leaf_id, beside=before.name)
            self._answering.release(conversation)
            conversation.branch, conversation.turns = branch, revision.path
            conversation.session = self.store.session(before.session_id)
        self._prefetch(conversation, None)

    def _keeper(self, branch: Branch) -> BranchName:
        """Return another branch that has all of this one's path, so that this one may move; else itself."""
        for one in self.store.branches(branch.session_id):
            path = self.store.turns_to(one.leaf_id) if one.name != branch.name else ()
            if any(turn.id == branch.leaf_id for turn in path):
                return one.name
        return branch.name

    def why(self, conversation: Conversation, answer_id: TurnId) -> Explanation:
        """Return why an answer computed what it did; see `explained`."""
        return explained(self.store, self.template, conversation.session, self.store.turn(answer_id))

    def notices(self, conversation: Conversation) -> tuple[str, ...]:
        """Return what a person should know of this conversation: of its KV, and of the model's template."""
        return notices_of(conversation, self.template, self.adapter)

    # Answers

    def send(
        self, conversation: Conversation, text: str, sampling: SamplingParams | None = None
    ) -> Iterator[ChatEvent]:
        with conversation.occupied():
            yield from self._ask(conversation, text, sampling)

    def edit(
        self, conversation: Conversation, turn_id: TurnId, text: str, sampling: SamplingParams | None = None
    ) -> Iterator[ChatEvent]:
        """Ask something else in place of an earlier question, on a new branch."""
        with conversation.occupied():
            yield from self._edit(conversation, turn_id, text, sampling)

    def edit_cost(self, conversation: Conversation, turn_id: TurnId, text: str) -> EditCost:
        """Return exactly what `edit` would cost now. Waits for the engine.

        Raises:
            UsageError: the turn is no message of the person on this branch, or `text` is empty.
        """
        _refuse_empty(text)
        path, left = split_at(conversation.turns, turn_id)
        session = conversation.session
        prompt = path_token_ids((*path, prompts.question(self.template, session, path, text)))
        assert prompt is not None, "a question that starts over needs no ids before it"
        reused = self.engine.reusable_len(prompt, namespace_of(session, path, len(prompt)))
        return path_cost(len(prompt), reused, left)

    def retry(
        self, conversation: Conversation, sampling: SamplingParams | None = None
    ) -> Iterator[ChatEvent]:
        """Answer the last question once more, on a new branch; by default so that the answer can differ."""
        with conversation.occupied():
            path = to_last_question(conversation.turns)
            is_answered = len(path) < len(conversation.turns)
            if is_answered:
                sampling = sampling or differing(self.sampling)
            if not self._can_read(path):
                yield from self._edit(conversation, path[-1].id, path[-1].text, sampling)
                return
            undo = self._answering.branch_off(conversation, path) if is_answered else None
            yield from self._answer_anew(conversation, None, sampling, undo)

    def continue_answer(
        self, conversation: Conversation, sampling: SamplingParams | None = None
    ) -> Iterator[ChatEvent]:
        """Go on with an answer that was cut short, from exactly the tokens it has.

        Raises:
            UsageError: the last answer is complete, or was written with another tokenizer.
        """
        with conversation.occupied():
            last = conversation.turns[-1] if conversation.turns else None
            if last is None or not last.is_open or self.template.is_closed(last.token_ids or ()):
                raise UsageError("there is no answer to continue; send a message, or retry the last answer")
            if not self._can_read(conversation.turns):
                raise UsageError("this answer was written with another tokenizer; retry it instead")
            branch, turn = self.store.reopen_answer(conversation.branch, last.id)
            conversation.branch = branch
            conversation.show_last(turn)

            def shut_again() -> None:
                conversation.show_last(self.store.finish_answer(turn.id, _outcome(last)))

            yield from self._answering.run(conversation, None, sampling or self.sampling, shut_again)

    def pose(self, conversation: Conversation, text: str) -> Turn:
        """Store a question that is to be answered by itself, as by `variants.compare`, and return it."""
        with conversation.occupied():
            _refuse_empty(text)
            question = self._question(conversation, text)
            conversation.branch = self.store.add_turns(conversation.branch, (question,))
            conversation.turns = (*conversation.turns, question)
            conversation.session = self.store.session(conversation.session.id)
            self._answering.release(conversation)
        return question

    # What depends on how the model is told

    def _mended(self, session: Session, turns: tuple[Turn, ...]) -> tuple[Turn, ...]:
        return digest_repair.mend(self.store, self.template, session, turns)

    def _can_read(self, path: tuple[Turn, ...]) -> bool:
        return prompts.has_usable_ids(self.template, path)

    def _behind(self, session: Session, path: Sequence[Turn], turn: Turn) -> Turn:
        return copy_behind(self.template, session, path, turn)

    def _question(self, conversation: Conversation, text: str) -> Turn:
        return prompts.question(self.template, conversation.session, conversation.turns, text)

    def _empty_answer(self, asked: Turn) -> Turn:
        return prompts.empty_answer(self.template, asked)

    def _ask(
        self, conversation: Conversation, text: str, sampling: SamplingParams | None, undo: Undo | None = None
    ) -> Iterator[ChatEvent]:
        _refuse_empty(text)
        question = self._question(conversation, text)
        if question.starts_over:
            self._answering.release(conversation)
        yield from self._answer_anew(conversation, question, sampling, undo)

    def _edit(
        self, conversation: Conversation, turn_id: TurnId, text: str, sampling: SamplingParams | None
    ) -> Iterator[ChatEvent]:
        path, _ = split_at(conversation.turns, turn_id)
        undo = self._answering.branch_off(conversation, path)
        yield from self._ask(conversation, text, sampling, undo)

    def _answer_anew(
        self,
        conversation: Conversation,
        question: Turn | None,
        sampling: SamplingParams | None,
        undo: Undo | None,
    ) -> Iterator[ChatEvent]:
        """Store a question (None: the path ends with one) and an empty answer, and let it grow."""
        before, path = conversation.branch, conversation.turns
        asked = path if question is None else (*path, question)
        answer = self._empty_answer(asked[-1])
        added = (answer,) if question is None else (question, answer)
        conversation.branch = self.store.add_turns(before, added)
        if conversation.branch.name != before.name:  # a branch beside it, or itself by the name it has got
            names = {one.name for one in self.store.branches(before.session_id)}
            conversation.diverged_from = before.name if before.name in names else None
        conversation.turns = (*asked, answer)
        conversation.session = self.store.session(conversation.session.id)

        def take_back() -> None:
            branch = self.store.withdraw(conversation.branch, before.leaf_id, [turn.id for turn in added])
            conversation.branch, conversation.turns = branch, path
            if undo is not None:
                undo()

        yield from self._answering.run(conversation, question, sampling or self.sampling, take_back)


def _refuse_empty(text: str) -> None:
    if not text.strip():
        raise UsageError("the message is empty; write something to send")


def _outcome(turn: Turn) -> Outcome:
    return Outcome(
        finish=turn.finish, usage=turn.usage, loaded=turn.loaded, timings=turn.timings, stored=turn.stored
    )
