"""Starting a conversation from a pack."""

from contextlib import closing
from dataclasses import replace

from kvchat.app.config import Settings
from kvchat.app.model_location import with_adapter
from kvchat.app.open_store import open_cache
from kvchat.errors import PackMismatch, UsageError
from kvchat.session.packs import Pack, PackStore
from kvchat.session.tree import Session
from kvchat.text.fit_text import one_line


def chosen_pack(name: str | None, system: str | None, settings: Settings) -> tuple[Pack | None, Settings]:
    """Return the pack that was asked for by name, if one was, and the settings of a new conversation.

    One that begins with a pack has its text and its adapter.

    Args:
        system: the system prompt that was given beside it.

    Raises:
        UsageError: one was given.
        PackNotFound: there is no such pack.
    """
    if name is None:
        return None, settings
    if system is not None:
        raise UsageError("a pack is a system prompt itself; leave out --system, or --pack")
    if settings.remote.url is not None:
        raise UsageError("a pack is computed and kept here, not by a server; leave out --pack, or --remote")
    pack = PackStore(settings.paths.packs_dir, settings.engine.encryptor).find(name)
    return pack, replace(with_adapter(settings, pack.adapter), system=pack.text)


def refuse_other_beginning(pack: Pack, session: Session) -> None:
    """Raise UsageError if a session that is there already does not begin with a pack."""
    if session.system != pack.text:
        raise UsageError(
            f"“{one_line(session.title)}” does not begin with the pack {pack.name!r}, and nothing can"
            " be put before what was said; ask in a new session, with --new NAME"
        )


def keep_again(pack: Pack, settings: Settings) -> None:
    """See that a pack's blocks are kept, also where the cache was deleted since it was made."""
    with closing(open_cache(settings)) as admin:
        if not admin.is_kept(pack.id):
            admin.keep(pack.id, bytes.fromhex(pack.fingerprint), pack.keys)


def mismatch(pack: Pack) -> PackMismatch:
    """Return the error where KV is computed otherwise than a pack's."""
    return PackMismatch(
        f"the pack {pack.name!r} was computed by {one_line(pack.model)} with KV as {pack.cache_format}, and"
        " nothing of it can be used here: give the -m, --dtype, --weights, --adapter and --cache-format with"
        f" which it was made, or make it again with `kvchat pack make {pack.name} --force`"
    )
