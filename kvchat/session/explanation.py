"""Explanation of a cache miss: the analysis, with the text around the first differing token."""

from collections.abc import Iterator
from contextlib import suppress

from kvchat.errors import KvchatError
from kvchat.session.cache_miss import Explanation, explain
from kvchat.session.store import SessionStore
from kvchat.session.template import prompts
from kvchat.session.template.chat_template import ChatTemplate
from kvchat.session.timestamp_limits import calendar
from kvchat.session.tree import Session, Turn, num_common, path_to

_NUM_OTHERS = 8
"""Conversations, the newest first, whose beginnings are looked at."""


def explained(store: SessionStore, template: ChatTemplate, session: Session, answer: Turn) -> Explanation:
    """Return why an answer computed what it did; see `explain`.

    Raises:
        UsageError: it was not computed here, or its ids are missing.
    """
    turns = store.all_turns(session.id)
    before = path_to({turn.id: turn for turn in turns}, answer)[:-2]
    system_len, rewrites = 0, False
    others: tuple[tuple[str, tuple[int, ...]], ...] = ()
    beginnings = () if before else tuple(_beginnings(store, session))
    with suppress(KvchatError):  # nothing is held against a template that refuses the conversation
        now = calendar(session.created_at)
        system = prompts.history(session, ())
        one, other = (template.whole(system, text, now=now) for text in "ab")
        rewrites = template.history_rewrite(prompts.history(session, before)) is not None
        system_len = num_common(one, other)
        others = beginnings
    miss = explain(turns, answer, system_len=system_len, rewrites=rewrites, others=others)
    decode = template.tokenizer.decode
    shared, here, there = (decode(ids, keep_control=True) for ids in (miss.shared, miss.here, miss.there))
    return Explanation(miss=miss, shared=shared, here=here, there=there)


def _beginnings(store: SessionStore, session: Session) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield how other conversations, already there when this one began, began, and with which fingerprint."""
    known = [one.session for one in store.list_sessions() if one.session.id != session.id]
    # Blocks of other namespaces never serve this one.
    alike = [one for one in known if one.namespace == session.namespace]
    for other in [one for one in alike if one.created_at <= session.created_at][:_NUM_OTHERS]:
        with suppress(KvchatError):  # deleted meanwhile, or damaged: nothing is known of it
            turns = store.turns_to(store.branch(other.id, other.active_branch).leaf_id)
            if len(turns) > 1 and turns[0].has_ids:
                yield turns[1].fingerprint, tuple(turns[0].token_ids or ())
