"""Token fork: the alternatives at a position of an answer, and a branch that goes on with one of them."""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from math import exp

from kvchat.chat.conversation import Answering, Conversation
from kvchat.chat.engine_client import events_of
from kvchat.chat.events import Alternative, ChatEvent, EditCost, TurnFinished, TurnStarted
from kvchat.chat.revision import path_cost
from kvchat.engine.api.events import RequestFinished, TokenEmitted, TokenLogprobs
from kvchat.engine.api.request import Request
from kvchat.engine.api.sampling_params import SamplingParams
from kvchat.errors import EngineFailed, KvchatError, UsageError
from kvchat.session.kv.provenance import namespace_of
from kvchat.session.template import prompts
from kvchat.session.tree import Finish, Role, Turn, TurnId, path_token_ids

_NUM_ALTERNATIVES = 8


class TokenForks:
    """Opens answers at any of their tokens."""

    def __init__(self, answering: Answering) -> None:
        self._answering = answering
        self._store = answering.store
        self._template = answering.template
        self._engine = answering.engine

    def texts(self, answer: Turn) -> tuple[str, ...]:
        """Return what each token of an answer says, control tokens by their names."""
        decode = self._template.tokenizer.decode
        return tuple(decode([token_id], keep_control=True) for token_id in answer.token_ids or ())

    def alternatives(self, conversation: Conversation, answer_id: TurnId, at: int) -> tuple[Alternative, ...]:
        """Return the most probable tokens at a place of an answer, the most probable first.

        Probabilities are the model's own, before temperature. Waits for the engine, which computes one token.

        Raises:
            UsageError: the answer is not on this branch, or of another tokenizer.
            EngineFailed: the engine ended the request before it had an answer.
        """
        path, answer = self._opened(conversation, answer_id)
        request = Request(
            token_ids=_ids_before(path, answer, at),
            sampling=SamplingParams(max_tokens=1, logprobs=_NUM_ALTERNATIVES, ignore_eos=True),
            owner=conversation.session.id,
            namespace=namespace_of(conversation.session, (*path, answer)),
        )
        return tuple(
            Alternative(
                token_id=token_id,
                text=self._template.tokenizer.decode([token_id], keep_control=True),
                probability=exp(logprob),
                is_end=token_id in self._template.end_ids,
            )
            for token_id, logprob in self._ask(request).top
        )

    def cost(self, conversation: Conversation, answer_id: TurnId, at: int) -> EditCost:
        """Return exactly what going on from a token costs now. Waits for the engine."""
        path, answer = self._opened(conversation, answer_id)
        ids = _ids_before(path, answer, at)
        # The chosen token stands behind; a prompt is never reused to its last token.
        namespace = namespace_of(conversation.session, (*path, answer))
        reused = min(self._engine.reusable_len((*ids, ids[-1]), namespace), len(ids))
        cost = path_cost(len(ids) + 1, reused, conversation.turns[len(path) :])
        return replace(cost, left_tokens=cost.left_tokens - at)

    def go_on(
        self, conversation: Conversation, answer_id: TurnId, at: int, token_id: int, sampling: SamplingParams
    ) -> Iterator[ChatEvent]:
        """Keep an answer's first `at` tokens, put another behind them, and let the model go on from there.

        The answer as it was stays on its branch.

        Raises:
            UsageError: the answer is not on this branch, or of another tokenizer.
        """
        with conversation.occupied():
            path, answer = self._opened(conversation, answer_id)
            ids = (*(answer.token_ids or ())[:at], token_id)
            turn = self._begun(path, ids)
            undo = self._answering.branch_off(conversation, path)
            try:
                conversation.branch = self._store.add_turns(conversation.branch, (turn,))
            except KvchatError:
                undo()
                raise
            conversation.turns = (*path, turn)

            def take_back() -> None:
                conversation.branch = self._store.withdraw(conversation.branch, path[-1].id, [turn.id])
                undo()

            if turn.finish is Finish.PARTIAL:
                yield from self._answering.run(conversation, None, sampling, take_back)
            else:
                yield TurnStarted(question=None, answer=turn)
                yield TurnFinished(answer=turn)

    def _opened(self, conversation: Conversation, answer_id: TurnId) -> tuple[tuple[Turn, ...], Turn]:
        """Return the path before an answer, and the answer."""
        turns = conversation.turns
        at = next((at for at, turn in enumerate(turns) if turn.id == answer_id), None)
        if at is None or turns[at].role is not Role.ASSISTANT:
            raise UsageError("only an answer on this branch can be opened as tokens")
        if not prompts.has_usable_ids(self._template, turns[: at + 1]) or not turns[at].token_ids:
            raise UsageError("this answer has no tokens that this model can read")
        return turns[:at], turns[at]

    def _begun(self, path: tuple[Turn, ...], ids: tuple[int, ...]) -> Turn:
        """Return an answer that has some tokens already."""
        prompt = path_token_ids(path)
        assert prompt is not None
        stream = self._template.stream(prompt)
        pieces = [piece for token_id in ids for piece in stream.feed(token_id)]
        is_closed = self._template.is_closed(ids)
        if is_closed:
            pieces += stream.finish()
        return replace(
            prompts.empty_answer(self._template, path[-1]),
            token_ids=ids,
            text="".join(piece.text for piece in pieces if not piece.reasoning),
            reasoning="".join(piece.text for piece in pieces if piece.reasoning),
            finish=Finish.COMPLETE if is_closed else Finish.PARTIAL,
        )

    def _ask(self, request: Request) -> TokenLogprobs:
        handle = self._engine.submit(request)
        found = TokenLogprobs(logprob=0.0)
        try:
            for event in events_of(handle):
                if isinstance(event, TokenEmitted) and event.logprobs is not None:
                    found = event.logprobs
                elif isinstance(event, RequestFinished) and not found.top:
                    raise EngineFailed(event.error or "the model was not asked to the end; try again")
            return found
        finally:
            handle.cancel()
            with suppress(KvchatError):
                self._engine.release(handle.sequence)


def _ids_before(path: tuple[Turn, ...], answer: Turn, at: int) -> tuple[int, ...]:
    ids = path_token_ids(path)
    assert ids is not None
    return (*ids, *(answer.token_ids or ())[:at])
