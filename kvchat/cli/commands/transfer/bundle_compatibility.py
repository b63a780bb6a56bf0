"""Agreement between a bundle's KV and the local model, or the differences. Loads no model."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvchat.app.config import Settings
from kvchat.app.model_location import located
from kvchat.engine.models.checkpoints.model_directory_check import stored_dtype
from kvchat.engine.models.checkpoints.prepared import PREPARED_DIR, PreparedCheckpoints, find_prepared
from kvchat.engine.models.checkpoints.weight_digests import WeightDigests
from kvchat.engine.models.known_fingerprints import differing, is_identity, layouts_of
from kvchat.engine.models.locate import ModelLocation, installed_model, lasting_name
from kvchat.errors import BundleError, ModelError
from kvchat.session.bundle.manifest import BundleModel, Manifest

_DIGESTS_FILE = "weights.json"
"""Where the engine keeps them too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """What came of comparing a bundle with a model that is here.

    Args:
        model: the name under which the session goes on; empty: the default model.
        differing: the fields of the fingerprint that differ, or why nothing could be compared; empty where
            the bundle's KV is of this model.
    """

    model: str = ""
    differing: tuple[str, ...] = ()


def agree(settings: Settings, path: Path, manifest: Manifest, model: str | None) -> Agreement:
    """Compare the bundle in `path` with a model: that which was asked for, or which it names if it is here.

    Effect: may read the weights to know their digest. Asks the network only for a model that was asked for.

    Raises:
        BundleError: its fingerprint was not taken over the fields that it shows.
        ModelError: the model that was asked for cannot be used.
    """
    kv = manifest.kv
    if kv is not None:
        _check_identity(path, kv)
    location = located(settings, model) if model else installed_model(manifest.model)
    if location is None:
        return Agreement(differing=(f"the model {manifest.model!r} is not here; name one with -m",))
    name = lasting_name(location)
    if kv is None:
        return Agreement(model=name, differing=("it does not say of which model it is",))
    if kv.fields is None:
        return Agreement(model=name, differing=("it does not say what its fingerprint was taken over",))
    try:
        found = differing(kv.fields, _own_fields(settings, location))
    except ModelError as error:
        return Agreement(model=name, differing=(str(error),))
    return Agreement(model=name, differing=tuple(found))


def _check_identity(path: Path, kv: BundleModel) -> None:
    if kv.fields is None:
        if kv.layouts:
            raise BundleError(f"{path} is refused: it has blocks, and does not say what they depend on")
        return
    if not is_identity(kv.fields, kv.fingerprint):
        raise BundleError(f"{path} is refused: its fingerprint was not taken over the fields it shows")
    if kv.layouts and not _has_layouts(kv):
        raise BundleError(f"{path} is refused: its blocks are laid out otherwise than its fingerprint says")


def _has_layouts(kv: BundleModel) -> bool:
    assert kv.fields is not None

    def regions(layouts: Mapping[Any, Sequence[Any]]) -> dict[int, list[tuple[Any, ...]]]:
        return {
            int(group): [(region.name, region.dtype, region.shape) for region in layout]
            for group, layout in layouts.items()
        }

    try:
        known = regions(layouts_of(kv.fields))
    except (KeyError, TypeError, ValueError, AttributeError):
        return False
    return known == regions(kv.layouts) and kv.fields.get("block_size") == kv.block_size


def _own_fields(settings: Settings, location: ModelLocation) -> Mapping[str, Any]:
    """Return the fields of the fingerprint that are known without loading the model.

    Route and layouts follow from these, and from the libraries: where those differ after all, the blocks are
    not found, and computed.
    """
    digests = WeightDigests(settings.paths.cache_dir / _DIGESTS_FILE)
    kept = PreparedCheckpoints(settings.paths.cache_dir / PREPARED_DIR, digests, None)
    checkpoint = find_prepared(
        location.path, settings.engine.adapter, settings.engine.weights, settings.engine.dtype, kept
    )
    digests.save()
    return {
        "weights": list(checkpoint.weights),
        "config": dict(checkpoint.config),
        "adapter": checkpoint.adapter,
        "dtype": stored_dtype(location.path, settings.engine.dtype),
        "cache_format": settings.engine.cache_format,
        "block_size": settings.engine.block_size,
    }
