"""Starting a conversation from a pack."""

from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING

from kvchat.app.config import Settings
from kvchat.app.model_location import with_adapter
from kvchat.app.open_store import open_cache
from kvchat.errors import PackMismatch, UsageError
from kvchat.session.packs import Pack, PackStore
from kvchat.session.tree import Session
from kvchat.text.fit_text import one_line

if TYPE_CHECKING:
    from kvchat.chat.service import Chat


def chosen_pack(name: str | None, system: str | None, settings: Settings) -> Pack | None:
    """Return the pack that was asked for by name, None where none was.

    Args:
        system: the system prompt that was given beside it.

    Raises:
        UsageError: one was given.
        PackNotFound: there is no such pack.
    """
    if name is None:
        return None
    if system is not None:
        raise UsageError("a pack is a system prompt itself; leave out --system, or --pack")
    if settings.remote.url is not None:
        raise UsageError("a pack is computed and kept here, not by a server; leave out --pack, or --remote")
    return PackStore(settings.paths.packs_dir, settings.engine.encryptor).find(name)


def begun_with(pack: Pack, settings: Settings) -> Settings:
    """Return the settings of a new conversation that begins with a pack: its text and its adapter."""
    return replace(with_adapter(settings, pack.adapter), system=pack.text)


def refuse_other_beginning(pack: Pack, session: Session) -> None:
    """Raise UsageError if a session that is there already does not begin with a pack."""
    if session.system != pack.text:
        raise UsageError(
            f"“{one_line(session.title)}” does not begin with the pack {pack.name!r}, and nothing can"
            " be put before what was said; ask in a new session, with --new NAME"
        )


def refuse_other_name(pack: Pack, model: str) -> None:
    """Raise PackMismatch if a model is not the one that computed a pack, as far as its name says."""
    if model != pack.model:
        raise _mismatch(pack)


def refuse_other_model(pack: Pack, chat: "Chat") -> None:
    """Raise PackMismatch if the engine computes other KV than a pack's. Waits until it is loaded."""
    if chat.engine.info().fingerprint != pack.fingerprint:
        raise _mismatch(pack)


def keep_again(pack: Pack, settings: Settings) -> None:
    """See that a pack's blocks are kept, also where the cache was deleted since it was made."""
    with closing(open_cache(settings)) as admin:
        if not admin.is_kept(pack.id):
            admin.keep(pack.id, bytes.fromhex(pack.fingerprint), pack.keys)


def _mismatch(pack: Pack) -> PackMismatch:
    return PackMismatch(
        f"the pack {pack.name!r} was computed by {one_line(pack.model)} with KV as {pack.cache_format}, and"
        " nothing of it can be used here: give the -m, --dtype, --weights, --adapter and --cache-format with"
        f" which it was made, or make it again with `kvchat pack make {pack.name} --force`"
    )
