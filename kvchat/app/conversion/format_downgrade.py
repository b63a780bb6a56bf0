"""Format downgrade: converts a conversation that outgrows the cache to a smaller format or a shadow, if so
configured.
"""

from collections.abc import Sequence

from kvchat.app.composition import Kvchat
from kvchat.app.config import COMPRESS, EVICT, Settings
from kvchat.app.conversion.child_process import convert_words
from kvchat.app.open_store import short_id
from kvchat.chat.conversation import Conversation
from kvchat.engine.api.cache_format import canonical_cache_format
from kvchat.engine.api.view import OFFERED_SHADOW, SHADOW, parse_view
from kvchat.errors import EngineFailed, PoolExhausted
from kvchat.session.store import SessionStore
from kvchat.session.tree import Session
from kvchat.text.shadow import is_shadow, require_exact_blocks

_BY_ITSELF = ("int8", "fp8")
"""What is taken where no format was named: on the built-in questions they lose nothing measurable."""


def wanted_formats(when_full: str) -> Sequence[str]:
    """Return the formats of fewer bits that may be taken, the first that can be; none where nothing is
    compressed. Pure.
    """
    verb, _, named = when_full.partition(":")
    if verb != COMPRESS:
        return ()
    return (named,) if named else _BY_ITSELF


def wanted_shadow(when_full: str) -> str | None:
    """Return the shadow that is to be taken; None: none is. Pure."""
    verb, _, named = when_full.partition(":")
    if verb != SHADOW:
        return None
    return canonical_cache_format(when_full) if named else OFFERED_SHADOW


def compressed_format(full: PoolExhausted, when_full: str) -> str | None:
    """Return the format in which a conversation goes on for which there was no room; None: it is refused.

    Raises:
        PoolExhausted: it would not fit in that format either.
    """
    if when_full == EVICT:
        return None
    shadow, wanted = wanted_shadow(when_full), wanted_formats(when_full)
    if shadow is not None:
        # Room does not follow from how much a step looks at; whether a forced one has it, its engine says.
        if OFFERED_SHADOW in full.fits_in or parse_view(shadow).is_forced:
            return shadow
        wanted = (shadow,)
    found = next((one for one in full.fits_in if one in wanted), None)
    if found is None:
        raise PoolExhausted(f"{full}; {' or '.join(wanted)} would not make it fit", full.fits_in)
    return found


def go_on_in(
    cache_format: str, kvchat: Kvchat, settings: Settings, conversation: Conversation, model: str
) -> str:
    """Keep a session's KV in another format, whose engine is loaded next; return what was done, in words.

    What is stored of it is converted; where nothing is, or it cannot be, it is computed again in the format.
    For a shadow nothing is: exact blocks are what it looks at.

    Effect: closes the engine, which saves what it has not saved yet.

    Raises:
        UsageError: a session has no exact blocks for a shadow; the engine goes on.
    """
    session = conversation.session
    if is_shadow(cache_format):
        require_exact_blocks(session)
    kvchat.engine.close()
    kvchat.use_engine({"cache_format": cache_format})
    if is_shadow(cache_format):
        return _looked_at(cache_format, session, kvchat)
    is_stored = bool(conversation.turns) and settings.engine.cache_dir is not None
    how = "all of it is computed in that format"
    if is_stored:
        try:
            done = convert_words(settings, session.id, cache_format, model, dry_run=False)
        except EngineFailed as error:
            how += f", since what is stored was not converted: {error}"
        else:
            how = f"{done}; {way_back(kvchat.store, session)}".replace("\n", "; ")
    return (
        f"the cache has no room for this conversation exactly, so its KV is kept in {cache_format} and its"
        f" answers are approximate: {how}"
    )


def way_back(store: SessionStore, session: Session) -> str:
    """Return how a converted session has exact KV again, in words."""
    return f"kvchat sessions convert {short_id(store, session.id)} exact goes back"


def _looked_at(cache_format: str, session: Session, kvchat: Kvchat) -> str:
    return (
        "the cache has no room for this conversation exactly, so its blocks, which stay as they are, may lie"
        f" in host memory and are looked at through {cache_format}; its answers are approximate: kvchat cache"
        f" gauge {short_id(kvchat.store, session.id)} --cache-format {cache_format} measures what that loses"
    )
