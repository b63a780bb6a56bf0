"""Shell completion: sessions by id and title, settings by name. Loads no model."""

import os
import re
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from kvchat.errors import KvchatError

if TYPE_CHECKING:
    from kvchat.app.config import Settings

_WORD_JOINER = "\u2060"
"""Shown as nothing."""

Offer = tuple[str, str]
"""A word, and what it stands for; shells that show no help show the word alone."""


def complete_session(ctx: object, incomplete: str) -> list[Offer]:
    """Return the sessions whose id or title begins with what is typed, last used first.

    Nothing is offered, and nobody asked for a passphrase, where the sessions cannot be read.
    """
    from kvchat.session.store import SessionStore

    with suppress(KvchatError, OSError):
        settings = _settings(ctx)
        if not settings.paths.sessions_db.is_file():
            return []
        with closing(SessionStore(settings.paths.sessions_db, settings.engine.encryptor)) as store:
            named = [(one.session.id, one.session.title) for one in store.list_sessions()]
        return [offer for id_, title in named if (offer := _offer(id_, title, incomplete))]
    return []


def complete_pack(ctx: object, incomplete: str) -> list[Offer]:
    """Return the packs whose name begins with what is typed; nothing where they cannot be read."""
    from kvchat.session.packs import PackStore

    with suppress(KvchatError, OSError):
        settings = _settings(ctx)
        packs = PackStore(settings.paths.packs_dir, settings.engine.encryptor).all()
        return [(pack.name, _shown(pack.model)) for pack in packs if pack.name.startswith(incomplete)]
    return []


def complete_setting(incomplete: str) -> list[Offer]:
    """Return the settings that begin with what is typed."""
    from kvchat.app.config import KEYS

    return [(name, key.variable) for name, key in KEYS.items() if name.startswith(incomplete)]


def _settings(ctx: object) -> "Settings":
    """Return the settings of what is typed so far; nobody is asked for a passphrase."""
    from kvchat.app.config import read_settings
    from kvchat.app.unlock import unlocked

    typed = getattr(ctx, "params", {})
    flags = {"paths.data_dir": typed["data_dir"]} if typed.get("data_dir") else {}
    config_file = typed.get("config")
    settings = read_settings(flags, config_file=Path(config_file) if config_file else None)
    return unlocked(settings, may_ask=False)


def _offer(id_: str, title: str, incomplete: str) -> Offer | None:
    word = _as_typed(title)
    if word and incomplete and word.startswith(incomplete):
        return word, id_
    return (id_, _shown(title)) if id_.startswith(incomplete) else None


def _shown(text: str) -> str:
    """Return what stands beside a word as it is written: Typer reads it as markup, with names of emoji."""
    from rich.markup import escape

    from kvchat.text.fit_text import one_line

    return re.sub(r":(?=[\w-]+:)", ":" + _WORD_JOINER, escape(one_line(text)))


def _as_typed(title: str) -> str:
    """Return a title as it is typed; bash alone inserts what it is offered without quoting it."""
    if not title.isprintable():
        return ""
    is_bash = os.environ.get("_KVCHAT_COMPLETE", "").endswith("bash")
    return re.sub(r"([^\w./+:-])", r"\\\1", title) if is_bash else title
