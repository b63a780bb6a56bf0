"""A chat service that follows a script: no model, no files, and the real interface on top."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count
from threading import Event
from time import sleep
from typing import Any

from kvchat.chat.conversation import Conversation
from kvchat.chat.events import ChatEvent, EditCost, Revision, TurnFinished, TurnStarted
from kvchat.chat.revision import plan_undo
from kvchat.engine.api.events import Loaded, Timings, Usage
from kvchat.engine.api.sampling_params import SamplingParams
from kvchat.errors import SessionNotFound
from kvchat.session.cache_miss import Explanation, explain
from kvchat.session.session_queries import SearchHit, SessionSummary
from kvchat.session.template.text_stream import Piece
from kvchat.session.tree import MAIN, Branch, BranchName, Finish, Role, Session, SessionId, Turn, TurnId
from tests.ui.gate import HELD_S
from tests.ui.records import prefilled
from tests.ui.scripted_engine import HeldTokens, ScriptedEngine
from tests.ui.scripted_unsent import ScriptedUnsent as ScriptedUnsent
from tests.ui.scripted_variants import ScriptedVariants

NOW = 1_800_000_000.0


class ScriptedStore:
    """Sessions in memory. Threads write while others read: these look through copies."""

    def __init__(self) -> None:
        self.unsent = ScriptedUnsent()
        self.sessions: dict[SessionId, Session] = {}
        self.paths: dict[tuple[SessionId, BranchName], tuple[Turn, ...]] = {}
        self.left_on_disk: Sequence[str] = ()
        self.salvaged = None

    def version(self) -> tuple[int, int]:
        """Return what changes with each write, as the store's second number does."""
        return 0, hash(tuple(self.paths.copy().items()))

    def interrupted(self) -> Sequence[Session]:
        return ()

    def list_sessions(self) -> Sequence[SessionSummary]:
        return [
            SessionSummary(
                session=session,
                num_turns=0,
                num_tokens=0,
                num_branches=len(self.branches(session.id)),
                excerpt="",
            )
            for session in self.sessions.copy().values()
        ]

    def branches(self, session_id: SessionId) -> Sequence[Branch]:
        return [
            Branch(session_id=session_id, name=name, leaf_id=path[-1].id if path else None, updated_at=NOW)
            for (owner, name), path in self.paths.copy().items()
            if owner == session_id
        ]

    def turns_to(self, leaf_id: TurnId | None) -> tuple[Turn, ...]:
        paths = self.paths.copy().values()
        return next((path for path in paths if path and path[-1].id == leaf_id), ())

    def turn(self, turn_id: TurnId) -> Turn:
        return next(turn for path in self.paths.copy().values() for turn in path if turn.id == turn_id)

    def outline(self, session_id: SessionId) -> dict[TurnId, tuple[TurnId | None, int]]:
        return {
            turn.id: (turn.parent_id, len(turn.token_ids or ()))
            for (owner, _), path in self.paths.copy().items()
            for turn in path
            if owner == session_id
        }

    def rename(self, session_id: SessionId, title: str) -> None:
        self.sessions[session_id] = replace(self.sessions[session_id], title=title)

    def pin(self, session_id: SessionId, *, is_pinned: bool) -> None:
        self.sessions[session_id] = replace(self.sessions[session_id], pinned=is_pinned)

    def search(self, text: str) -> Sequence[SearchHit]:
        found = {turn.id: turn for path in self.paths.copy().values() for turn in path}
        return [
            SearchHit(
                session_id=turn.session_id,
                title=self.sessions[turn.session_id].title,
                turn_id=turn.id,
                role=turn.role,
                created_at=NOW,
                excerpt=turn.text[:60],
            )
            for turn in found.values()
            if all(word in turn.text.casefold() for word in text.casefold().split())
        ]

    def recent_questions(self) -> Sequence[str]:
        turns = [turn for path in self.paths.copy().values() for turn in path if turn.role is Role.USER]
        return list(dict.fromkeys(turn.text for turn in turns))

    def delete_session(self, session_id: SessionId) -> None:
        del self.sessions[session_id]
        for key in [key for key in self.paths.copy() if key[0] == session_id]:
            del self.paths[key]

    def remove_branch(self, session_id: SessionId, name: str) -> None:
        del self.paths[session_id, name]

    def still_readable(self) -> Sequence[str]:
        return self.left_on_disk


@dataclass
class Answer:
    """One scripted answer. `hold`: wait for this event after each piece; `fail`: raise before the start;
    `fits_in`: it breaks off at its end for want of room; `never_ends`: it says its text again and again.
    """

    text: str = "Very well."
    reasoning: str = ""
    hold: Event | None = None
    fail: Exception | None = None
    piece_len: int = 6
    fits_in: tuple[str, ...] = ()
    notices: tuple[str, ...] = ()
    pace_s: float = 0.0
    never_ends: bool = False

    def pieces(self) -> Iterator[str]:
        while True:
            for at in range(0, len(self.text), self.piece_len):
                yield self.text[at : at + self.piece_len]
            if not self.never_ends:
                return


class ScriptedChat:
    """A chat service that gives the answers of its script, then repeats the last one."""

    model = "scripted"

    def __init__(self, engine: ScriptedEngine, answers: Sequence[Answer] = (Answer(),)) -> None:
        self.store = ScriptedStore()
        self.variants = ScriptedVariants(self)
        self.retry_temperature: float | None = 0.8
        self.sent: list[str] = []
        self.prefetched: list[str | None] = []
        self.closed: list[str] = []
        self.behind: list[str] = []
        self.hold_costs: Event | None = None
        self.sampling = SamplingParams()
        self._engine = engine
        self._answers = list(answers)
        self._numbers = count(1)

    def use_sampling(self, sampling: SamplingParams) -> None:
        self.sampling = sampling

    def create(self, title: str = "", system: str = "") -> Conversation:
        session = Session(
            id=SessionId(f"s{next(self._numbers)}"),
            title=title,
            system=system,
            model=self.model,
            created_at=NOW,
            updated_at=NOW + len(self.store.sessions),
        )
        self.store.sessions[session.id] = session
        self.store.paths[session.id, MAIN] = ()
        return self._conversation(session, MAIN)

    def add_session(self, title: str, turns: Sequence[tuple[str, str]] = ()) -> Conversation:
        """Store a finished conversation, as if it had been held before."""
        conversation = self.create(title=title)
        for question, answer in turns:
            asked = self._question(conversation, question)
            self._keep(conversation, (*conversation.turns, asked))
            answered = replace(self._blank_answer(conversation, asked), text=answer, finish=Finish.COMPLETE)
            self._keep(conversation, (*conversation.turns, self._with_figures(answered, 0, asked)))
        return conversation

    def open(self, reference: str, branch: str | None = None) -> Conversation:
        for session in self.store.sessions.copy().values():
            if reference in (session.id, session.title):
                return self._conversation(session, BranchName(branch or session.active_branch))
        raise SessionNotFound(f"there is no session {reference!r}")

    def open_at(self, turn_id: TurnId) -> Conversation:
        for (session_id, branch), path in self.store.paths.copy().items():
            if any(turn.id == turn_id for turn in path):
                return self._conversation(self.store.sessions[session_id], branch)
        raise SessionNotFound("there is no such message; it may have been deleted")

    def prefetch(self, reference: str | None, branch: str | None = None, beside: Any = None) -> None:
        self.prefetched.append(reference)

    def send(self, conversation: Conversation, text: str) -> Iterator[ChatEvent]:
        answer = self._next_answer()
        if answer.fail:
            raise answer.fail
        self.sent.append(text)
        session = conversation.session
        if not session.title:
            self.store.rename(session.id, text[:40])
            conversation.session = self.store.sessions[session.id]
        question = self._question(conversation, text)
        self._keep(conversation, (*conversation.turns, question))
        yield from self._answer(conversation, question, question, answer)

    def retry(self, conversation: Conversation) -> Iterator[ChatEvent]:
        question = conversation.turns[-2]
        self.branch_off(conversation, conversation.turns[:-1], f"retry-{next(self._numbers)}")
        yield from self._answer(conversation, None, question, self._next_answer())

    def continue_answer(self, conversation: Conversation) -> Iterator[ChatEvent]:
        *before, last = conversation.turns
        self._keep(conversation, tuple(before))
        answer = self._next_answer()
        yield from self._answer(conversation, None, before[-1], answer, start=last)

    def edit(self, conversation: Conversation, turn_id: TurnId, text: str) -> Iterator[ChatEvent]:
        at = [turn.id for turn in conversation.turns].index(turn_id)
        self.branch_off(conversation, conversation.turns[:at], f"edit-{next(self._numbers)}")
        yield from self.send(conversation, text)

    def edit_cost(self, conversation: Conversation, turn_id: TurnId, text: str) -> EditCost:
        if self.hold_costs is not None:
            self.hold_costs.wait(HELD_S)
        at = [turn.id for turn in conversation.turns].index(turn_id)
        left = len(conversation.turns) - at
        return EditCost(reused_tokens=10, computed_tokens=len(text), left_turns=left, left_tokens=7 * left)

    def plan_undo(self, conversation: Conversation, num: int = 1) -> Revision:
        return plan_undo(conversation.turns, num, conversation.branch.name)

    def plan_drop(self, conversation: Conversation, question_id: TurnId) -> Revision:
        turns = conversation.turns
        at = [turn.id for turn in turns].index(question_id)
        branch = conversation.branch.name
        return Revision(kept=turns[:at], anew=turns[at + 2 :], left=turns[at:], stays_on=branch)

    def revision_cost(self, conversation: Conversation, revision: Revision) -> EditCost:
        reused, computed = (
            sum(len(turn.token_ids or ()) for turn in turns) for turns in (revision.kept, revision.anew)
        )
        left = len(revision.left)
        return EditCost(reused_tokens=reused, computed_tokens=computed, left_turns=left, left_tokens=7 * left)

    def revise(self, conversation: Conversation, revision: Revision) -> None:
        self.branch_off(conversation, revision.path, f"{conversation.branch.name}-2")

    def why(self, conversation: Conversation, answer_id: TurnId) -> Explanation:
        answer = next(turn for turn in conversation.turns if turn.id == answer_id)
        return Explanation(miss=explain(conversation.turns, answer), shared="", here="", there="")

    def fork(
        self, conversation: Conversation, at: TurnId | None = None, name: str | None = None
    ) -> Conversation:
        branch = BranchName(name or f"fork-{next(self._numbers)}")
        turns = conversation.turns
        end = [turn.id for turn in turns].index(at) + 1 if at is not None else len(turns)
        self.store.paths[conversation.session.id, branch] = turns[:end]
        self._share(conversation)
        return self._conversation(conversation.session, branch)

    def stop(self, conversation: Conversation) -> None:
        conversation.stop()

    def put_behind(self, conversation: Conversation) -> None:
        self.behind.append(conversation.session.id)

    def bring_forward(self, conversation: Conversation) -> None:
        self.behind = [session for session in self.behind if session != conversation.session.id]

    def notices(self, conversation: Conversation) -> Sequence[str]:
        return ()

    def close(self, conversation: Conversation) -> None:
        self.closed.append(conversation.session.id)

    def _answer(
        self,
        conversation: Conversation,
        question: Turn | None,
        parent: Turn,
        answer: Answer,
        start: Turn | None = None,
    ) -> Iterator[ChatEvent]:
        with conversation.occupied():
            turn = start or self._blank_answer(conversation, parent)
            cached = sum(len(turn.token_ids or ()) for turn in conversation.turns[:-1])
            prompt = cached + len(parent.token_ids or ())
            yield TurnStarted(question=question, answer=turn)
            yield prefilled(prompt, cached=cached, computed=prompt - cached)
            if answer.reasoning:
                yield Piece(text=answer.reasoning, reasoning=True)
            shown = turn.text
            for piece in answer.pieces():
                if conversation.is_stopping:
                    break
                shown += piece
                self._hold(conversation, prompt + len(shown.split()), running=True)
                yield Piece(text=piece)
                if answer.hold is not None:
                    answer.hold.wait(HELD_S)
                sleep(answer.pace_s)
            finish = Finish.INTERRUPTED if conversation.is_stopping else Finish.COMPLETE
            finish = Finish.ERROR if answer.fits_in else finish
            done = replace(turn, text=shown, reasoning=answer.reasoning, finish=finish)
            done = self._with_figures(done, cached, parent)
            self._keep(conversation, (*conversation.turns, done))
            self._hold(conversation, prompt + len(done.token_ids or ()), running=False)
            self._engine.reused += cached
            self._engine.computed += prompt - cached
            error = "full" if answer.fits_in else None
            yield TurnFinished(answer=done, error=error, fits_in=answer.fits_in, notices=answer.notices)

    def _next_answer(self) -> Answer:
        return self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]

    def _conversation(self, session: Session, branch: BranchName) -> Conversation:
        found = next(known for known in self.store.branches(session.id) if known.name == branch)
        return Conversation(self.store.sessions[session.id], found, self.store.paths[session.id, branch])

    def branch_off(self, conversation: Conversation, turns: Sequence[Turn], name: str) -> None:
        conversation.branch = replace(conversation.branch, name=BranchName(name))
        self._keep(conversation, tuple(turns))

    def _keep(self, conversation: Conversation, turns: tuple[Turn, ...]) -> None:
        conversation.turns = turns
        leaf_id = turns[-1].id if turns else None
        conversation.branch = replace(conversation.branch, leaf_id=leaf_id)
        self.store.paths[conversation.session.id, conversation.branch.name] = turns

    def _question(self, conversation: Conversation, text: str) -> Turn:
        return self._turn(conversation, Role.USER, text, tuple(range(12 + len(text.split()))))

    def _blank_answer(self, conversation: Conversation, parent: Turn) -> Turn:
        turn = self._turn(conversation, Role.ASSISTANT, "", ())
        return replace(turn, parent_id=parent.id, finish=Finish.PARTIAL)

    def _turn(self, conversation: Conversation, role: Role, text: str, ids: tuple[int, ...]) -> Turn:
        return Turn(
            id=TurnId(f"t{next(self._numbers)}"),
            session_id=conversation.session.id,
            parent_id=conversation.turns[-1].id if conversation.turns else None,
            role=role,
            text=text,
            token_ids=ids,
            finish=Finish.COMPLETE,
            created_at=NOW,
        )

    def _with_figures(self, turn: Turn, cached: int, parent: Turn) -> Turn:
        computed = len(parent.token_ids or ())
        num_tokens = len(turn.text.split()) + 1
        return replace(
            turn,
            token_ids=tuple(range(num_tokens)),
            usage=Usage(
                prompt_tokens=cached + computed,
                cached_tokens=cached,
                computed_tokens=computed,
                completion_tokens=num_tokens,
            ),
            loaded=Loaded(device=cached),
            timings=Timings(ttft_s=0.2, total_s=1.0, decode_tokens_per_s=38.0),
        )

    def _hold(self, conversation: Conversation, num_tokens: int, *, running: bool) -> None:
        key = f"{conversation.session.id}/{conversation.branch.name}"
        before = self._engine.held.get(key)
        self._engine.held[key] = HeldTokens(
            owner=conversation.session.id,
            num_tokens=num_tokens,
            num_shared=min(before.num_shared, num_tokens) if before else 0,
            running=running,
        )

    def _share(self, conversation: Conversation) -> None:
        """Let all branches of a forked conversation share what it has."""
        num_tokens = sum(len(turn.token_ids or ()) for turn in conversation.turns)
        self._engine.held[f"{conversation.session.id}/{conversation.branch.name}"] = HeldTokens(
            owner=conversation.session.id, num_tokens=num_tokens, num_shared=num_tokens
        )
