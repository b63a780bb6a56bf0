"""Cost of a revision at this moment. Changes nothing; waits for the engine."""

from collections.abc import Iterable

from kvchat.chat.engine_client import EngineClient
from kvchat.chat.events import EditCost
from kvchat.chat.revision import Revision, context_ids
from kvchat.session.kv.provenance import namespace_of
from kvchat.session.template import prompts
from kvchat.session.template.chat_template import ChatTemplate
from kvchat.session.tree import Session, Turn, path_token_ids


def of_revision(
    engine: EngineClient, template: ChatTemplate, session: Session, revision: Revision
) -> EditCost:
    """Price a course that a conversation goes on along.

    Nothing is computed before the next message is sent; `computed_tokens` come before its own then.
    """
    ids = context_ids(template, session, revision.path)
    # A prompt is never reused to its last token, so one more stands for the next message.
    namespace = namespace_of(session, revision.path)
    probed = engine.reusable_len((*ids, ids[-1]), namespace) if ids else 0
    return _cost(len(ids), min(probed, len(ids)), revision.left)


def of_edit(
    engine: EngineClient,
    template: ChatTemplate,
    session: Session,
    path: tuple[Turn, ...],
    left: tuple[Turn, ...],
    text: str,
) -> EditCost:
    """Price a question behind `path` in place of the turns `left`."""
    prompt = path_token_ids((*path, prompts.question(template, session, path, text)))
    assert prompt is not None, "a question that starts over needs no ids before it"
    reused = engine.reusable_len(prompt, namespace_of(session, path, len(prompt)))
    return _cost(len(prompt), reused, left)


def _cost(num_tokens: int, reused: int, left: Iterable[Turn]) -> EditCost:
    left = tuple(left)
    return EditCost(
        reused_tokens=reused,
        computed_tokens=num_tokens - reused,
        left_turns=len(left),
        left_tokens=sum(len(turn.token_ids or ()) for turn in left),
    )
