"""Where that was chosen, a conversation that has outgrown the cache goes on in fewer bits."""

from collections.abc import Sequence

from kvchat.cli.compose import Kvchat
from kvchat.cli.convert_process import convert_words
from kvchat.cli.shelf import short_id
from kvchat.config import EVICT, Settings
from kvchat.conversation import Conversation
from kvchat.errors import EngineFailed, PoolExhausted

_BY_ITSELF = ("int8", "fp8")
"""What is taken where no format was named: on the built-in questions they lose nothing measurable."""


def wanted_formats(when_full: str) -> Sequence[str]:
    """Return the formats that may be taken, the first that can be; none where nothing is compressed. Pure.

    Args:
        when_full: the setting of this name.
    """
    verb, _, named = when_full.partition(":")
    if verb == EVICT:
        return ()
    return (named,) if named else _BY_ITSELF


def compressed_format(full: PoolExhausted, when_full: str) -> str | None:
    """Return the format in which a conversation goes on for which there was no room; None: it is refused.

    Args:
        when_full: the setting of this name.

    Raises:
        PoolExhausted: it would not fit in that format either.
    """
    wanted = wanted_formats(when_full)
    if not wanted:
        return None
    found = next((one for one in full.fits_in if one in wanted), None)
    if found is None:
        raise PoolExhausted(f"{full}; {' or '.join(wanted)} would not make it fit", full.fits_in)
    return found


def go_on_in(
    cache_format: str, kvchat: Kvchat, settings: Settings, conversation: Conversation, model: str
) -> str:
    """Keep a session's KV in another format, whose engine is loaded next; return what was done, in words.

    What is stored of it is converted; where nothing is, or it cannot be, it is computed again in the format.

    Effect: closes the engine, which saves what it has not saved yet.
    """
    kvchat.engine.close()
    kvchat.use_format(cache_format)
    session = conversation.session
    is_stored = bool(conversation.turns) and settings.engine.cache_dir is not None
    how = "all of it is computed in that format"
    if is_stored:
        try:
            done = convert_words(settings, session.id, cache_format, model, dry_run=False)
        except EngineFailed as error:
            how += f", since what is stored was not converted: {error}"
        else:
            ids = [summary.session.id for summary in kvchat.store.list_sessions()]
            back = f"kvchat sessions convert {short_id(session.id, ids)} exact goes back"
            how = f"{done}; {back}".replace("\n", "; ")
    return (
        f"the cache has no room for this conversation exactly, so its KV is kept in {cache_format} and its"
        f" answers are approximate: {how}"
    )
