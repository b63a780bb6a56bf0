"""Model of a run, and the adapter of what is stored, under the settings in force."""

from dataclasses import replace
from pathlib import Path

from kvchat.app.config import Settings
from kvchat.engine.models.locate import ModelLocation, Progress, locate_model


def located(settings: Settings, model: str, progress: Progress | None = None) -> ModelLocation:
    """Return the directory of a model, as `locate_model` does. What is made of a GGUF file keeps to the limit
    of the disk from its first byte on.

    Raises:
        ModelError: as `locate_model`.
    """
    return locate_model(
        model,
        cache_dir=settings.paths.cache_dir,
        disk_bytes=settings.engine.disk_bytes,
        encryptor=settings.engine.encryptor,
        progress=progress,
    )


def with_adapter(settings: Settings, adapter: str) -> Settings:
    """Return settings with the adapter that a session or a pack was computed with, unless they name one."""
    if settings.engine.adapter is not None or not adapter:
        return settings
    return replace(settings, engine=replace(settings.engine, adapter=Path(adapter)))
