"""Location of the model that a person named, under the settings in force."""

from kvchat.app.config import Settings
from kvchat.engine.models.locate import ModelLocation, locate_model


def located(settings: Settings, model: str) -> ModelLocation:
    """Return the directory of a model, as `locate_model` does. What is made of a GGUF file keeps to the limit
    of the disk from its first byte on.

    Raises:
        ModelError: as `locate_model`.
    """
    return locate_model(
        model,
        cache_dir=settings.paths.cache_dir,
        disk_bytes=settings.engine.disk_bytes,
        sealer=settings.engine.sealer,
    )
