"""Notices on opening a conversation: imported or converted KV, a template that rewrites, another adapter."""

from shlex import quote

from kvchat.chat.conversation import Conversation
from kvchat.session.kv.provenance import origin_of
from kvchat.session.template import prompts
from kvchat.session.template.chat_template import ChatTemplate

_NOT_VERIFIED = (
    "the KV of this session was imported and not all of it is verified, so no other session shares it; "
    "`kvchat sessions verify --all {}` computes it again"
)

_CONVERTED = (
    "the KV of this session was converted to {}, so its answers are approximate; "
    "`kvchat sessions convert {} exact` goes back"
)


def notices_of(conversation: Conversation, template: ChatTemplate, adapter: str) -> tuple[str, ...]:
    """Return the sentences to show; `adapter` is the directory of the LoRA that the engine has, or empty."""
    session = conversation.session
    of_kv = _NOT_VERIFIED.format(session.id) if session.namespace else ""
    if (origin := origin_of(session.namespace)) is not None:
        of_kv = _CONVERTED.format(origin.cache_format, session.id)
    rewrite = template.history_rewrite(prompts.history(session, conversation.turns))
    found = (of_kv, _adapter_words(conversation, adapter), *template.warnings, rewrite)
    return tuple(filter(None, found))


def _adapter_words(conversation: Conversation, adapter: str) -> str:
    """Say how the weights differ from those that a conversation was computed with, by their adapter."""
    session = conversation.session
    if session.adapter == adapter or not any(turn.fingerprint for turn in conversation.turns):
        return ""
    was, here = (f"the adapter {name}" if name else "no adapter" for name in (session.adapter, adapter))
    how = f"--adapter {quote(session.adapter or 'none')}"
    return (
        f"It was computed with {was}, and here is {here}: its KV is computed again, and answers may differ."
        f" To go on as before: kvchat {session.id} {how}"
    )
