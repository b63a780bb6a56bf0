"""Groups of a model as a cache format stores them: a table of what formats and views make of a layer.

How formats are named and written is said in `engine/api/cache_format.py`; a format is part of the
fingerprint, so its blocks are named apart from all others.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

from kvchat.engine.api import cache_format
from kvchat.engine.api.cache_format import CacheFormat, SideFormat, parse_cache_format
from kvchat.engine.api.ids import GroupId
from kvchat.engine.formats.apply_view import viewed_groups
from kvchat.engine.formats.fp8_latent.spec import fp8_layer
from kvchat.engine.formats.full.spec import FullSpec
from kvchat.engine.formats.latent.spec import LatentSpec
from kvchat.engine.formats.quantized.spec import quantized_layer
from kvchat.engine.formats.spec import CacheSpec, Group, StoredLayer, group_layers
from kvchat.engine.kernels.quantized_record import Code
from kvchat.errors import ConfigError

Store = Callable[[CacheSpec, SideFormat, int], StoredLayer]
"""(spec of a layer, form of its keys and values, tokens of a block) -> what is stored of it."""

_FORMS: dict[tuple[str, str], Store] = {
    **{(FullSpec.kind, code.value): quantized_layer for code in Code},
    (LatentSpec.kind, "fp8"): fp8_layer,
}
"""By the kind of a layer and the name of a format."""


def register_form(kind: str, name: str, store: Store) -> None:
    """Add a form of layers of a kind to the table, and its name to those that people write."""
    _FORMS[kind, name] = store
    cache_format.NAMES[name] = None


def stored_groups(groups: Sequence[Group], text: str, block_size: int) -> tuple[Group, ...]:
    """Return the groups of a model as a format stores them: first those that tokens are written to, then
    those whose blocks are made of theirs; states last, which stay as they are.

    Raises:
        ConfigError: there is no such format, or it has no form for a layer of this model.
    """
    form = parse_cache_format(text)
    if form.is_exact:
        return tuple(groups)
    states = [group for group in groups if group.is_state]
    of_tokens = [group for group in groups if not group.is_state]
    if not of_tokens:
        raise ConfigError(f"cache format '{form}': this model keeps states alone; use --cache-format exact")
    found = _stored_groups(of_tokens, form, block_size)
    return found + tuple(replace(group, id=GroupId(len(found) + at)) for at, group in enumerate(states))


def _stored_groups(groups: Sequence[Group], form: CacheFormat, block_size: int) -> tuple[Group, ...]:
    if form.view is not None:
        return viewed_groups(groups, form.view, block_size)
    specs = {layer: group.spec for group in groups for layer in group.layers}
    _require_layers(form, specs)
    stored = {layer: _stored(layer, spec, form, block_size) for layer, spec in specs.items()}
    if all(stored[layer] == StoredLayer(spec) for layer, spec in specs.items()):
        raise ConfigError(
            f"cache format '{form}' would store this model's layers as they are: {_why_exact(specs)}; use "
            "--cache-format exact"
        )
    borrowed = {layer: lender for group in groups for layer, lender in group.borrowers}
    written = group_layers({layer: one.spec for layer, one in stored.items()}, borrowed)
    group_of = {layer: group.id for group in written for layer in group.layers}
    derived = group_layers({layer: one.derived for layer, one in stored.items() if one.derived is not None})
    return written + tuple(
        replace(group, id=GroupId(len(written) + group.id), source=group_of[group.layers[0]])
        for group in derived
    )


def _why_exact(specs: dict[int, CacheSpec]) -> str:
    if all(spec.max_visible is not None for spec in specs.values()):
        return "all of them have a window, and those stay exact"
    return "all but those with a window, which stay exact, are named as exact"


def _require_layers(form: CacheFormat, specs: dict[int, CacheSpec]) -> None:
    for part in form.ranges:
        if part.last > max(specs):
            raise ConfigError(
                f"cache format: '{part}' names layers that this model lacks; its last one is {max(specs)}"
            )


def _stored(layer: int, spec: CacheSpec, form: CacheFormat, block_size: int) -> StoredLayer:
    own = form.form_of(layer)
    if own.is_exact:
        return StoredLayer(spec)
    if spec.max_visible is not None:
        if form.is_named(layer):
            raise ConfigError(f"cache format: layer {layer} has a window ({spec.kind}) and stays exact")
        return StoredLayer(spec)
    keys, values = (_FORMS.get((spec.kind, name)) for name in (own.key, own.value))
    if keys is None or keys is not values:
        known = [name for kind, name in _FORMS if kind == spec.kind]
        problem = "has no form" if None in (keys, values) else "mixes two ways of storing, which is no form"
        raise ConfigError(
            f"cache format '{own}' {problem} for layer {layer} of this model ({spec.kind}); use "
            f"--cache-format {' or '.join((*known, cache_format.EXACT))}"
        )
    return keys(spec, own, block_size)
