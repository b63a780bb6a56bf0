"""Repair of damaged turns: text from token ids, token ids from text, facts from their possible values.

The digests of a turn's parts decide. Ids and facts are accepted only with the digest that was written for
them; text follows from intact ids, whatever became of its own digest.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from kvchat.session.store import SessionStore
from kvchat.session.template import prompts
from kvchat.session.template.chat_template import ChatTemplate
from kvchat.session.tree import Finish, MessagePart, Role, Session, Turn, path_token_ids

_PROBE = "kvchat"


def mend(
    store: SessionStore, template: ChatTemplate, session: Session, path: Sequence[Turn]
) -> tuple[Turn, ...]:
    """Repair what can be repaired of a path, root first, and return the path as it is then.

    Effect: repaired turns are stored, marked as repaired. A path without damage costs nothing.

    Raises: StorageError: the store cannot be written.
    """
    mended = list(path)
    for at, turn in enumerate(path):
        if turn.broken and turn.finish is not Finish.PARTIAL:
            candidates = _candidates(template, session, mended[:at], turn)
            found = next(filter(None, map(store.repair, candidates)), None)
            mended[at] = found or turn
    return tuple(mended)


def _candidates(
    template: ChatTemplate, session: Session, before: Sequence[Turn], turn: Turn
) -> Iterator[Turn]:
    """Yield what a turn may have been. The template says nothing of turns of another tokenizer."""
    is_ours = turn.tokenizer == template.tokenizer.digest
    if turn.broken == {MessagePart.TEXT} and turn.token_ids is not None and is_ours:
        if turn.role is Role.ASSISTANT:
            yield _answer_from_ids(template, before, turn)
        else:
            yield from _question_from_ids(template, session, before, turn)
    elif turn.broken == {MessagePart.IDS} and is_ours:
        yield from _ids_from_text(template, session, before, turn)
    elif turn.broken == {MessagePart.FACTS}:
        yield from _facts(before, turn)


def _answer_from_ids(template: ChatTemplate, before: Sequence[Turn], turn: Turn) -> Turn:
    stream = template.stream(path_token_ids(before) or ())
    pieces = [piece for token_id in turn.token_ids or () for piece in stream.feed(token_id)]
    pieces += stream.finish()
    return replace(
        turn,
        text="".join(piece.text for piece in pieces if not piece.reasoning),
        reasoning="".join(piece.text for piece in pieces if piece.reasoning),
    )


def _question_from_ids(
    template: ChatTemplate, session: Session, before: Sequence[Turn], turn: Turn
) -> Iterator[Turn]:
    """Yield the question between what the template puts around any question in this place."""
    probe = prompts.question_ids(template, session, before, _PROBE, starts_over=turn.starts_over)
    head, _, end = template.tokenizer.decode(probe, keep_control=True).rpartition(_PROBE)
    raw = template.tokenizer.decode(turn.token_ids or (), keep_control=True)
    if raw.startswith(head) and raw.endswith(end) and len(raw) >= len(head) + len(end):
        yield replace(turn, text=raw[len(head) : len(raw) - len(end)])


def _ids_from_text(
    template: ChatTemplate, session: Session, before: Sequence[Turn], turn: Turn
) -> Iterator[Turn]:
    if turn.role is Role.USER:
        ids = prompts.question_ids(template, session, before, turn.text, starts_over=turn.starts_over)
        yield replace(turn, token_ids=tuple(ids))
        return
    ids = template.tokenizer.encode(turn.text)
    for end in ((), *((end_id,) for end_id in sorted(template.end_ids))):
        yield replace(turn, token_ids=(*ids, *end))


def _facts(before: Sequence[Turn], turn: Turn) -> Iterator[Turn]:
    """Yield the turn with each fact in turn replaced by each value that it can have had."""
    yield from (replace(turn, finish=finish) for finish in Finish if finish is not Finish.PARTIAL)
    yield from (replace(turn, role=role) for role in Role)
    yield from (replace(turn, exact=exact) for exact in (True, False))
    yield from (replace(turn, starts_over=starts_over) for starts_over in (True, False))
    yield replace(turn, session_id=before[0].session_id) if before else turn
    for other in before:
        yield replace(turn, tokenizer=other.tokenizer)
        yield replace(turn, model=other.model)
        yield replace(turn, fingerprint=other.fingerprint)
