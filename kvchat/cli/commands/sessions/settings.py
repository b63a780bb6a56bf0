"""The settings with which a stored session is computed again."""

from dataclasses import replace
from pathlib import Path

from kvchat.app.config import Settings
from kvchat.session.tree import Session


def with_adapter(settings: Settings, session: Session) -> Settings:
    """Return settings with the adapter that a session was computed with, unless they name one."""
    if settings.engine.adapter is not None or not session.adapter:
        return settings
    return replace(settings, engine=replace(settings.engine, adapter=Path(session.adapter)))
