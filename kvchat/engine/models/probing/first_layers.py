"""A model cut down to its first layers, for checks that need one layer of each sort but not all of them."""

from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from torch import nn

from kvchat.engine.formats.spec import Group

LEAST = 2


def layers_of(module: nn.Module) -> list[nn.Module]:
    """Return the layers that stand in a row, none if they are not found."""
    lists = _layer_lists(module)
    return list(lists[0][2]) if lists else []


def num_kinds_prefix(module: nn.Module, specs: Mapping[int, Hashable]) -> int | None:
    """Return how many first layers contain one of every sort, or None if the layers are not found in a row.

    Layers are of one sort if they keep the same and consist of the same modules with the same settings.
    """
    layers = layers_of(module)
    if not layers:
        return None
    sorts = [(specs.get(number), _settings(layer)) for number, layer in enumerate(layers)]
    return max(min(LEAST, len(layers)), 1 + max(sorts.index(sort) for sort in sorts))


def num_telling_layers(module: nn.Module, groups: Sequence[Group]) -> int | None:
    """Return how many first layers show all there is; None: all, where later ones read what others keep."""
    if any(group.borrowers for group in groups):
        return None
    return num_kinds_prefix(module, {layer: group.spec for group in groups for layer in group.layers})


@contextmanager
def first_layers(module: nn.Module, number: int | None) -> Iterator[None]:
    """Leave a model only its first layers; None: all of them."""
    lists = _layer_lists(module) if number is not None else []
    try:
        for parent, name, layers in lists:
            setattr(parent, name, nn.ModuleList(list(layers)[:number]))
        yield
    finally:
        for parent, name, layers in lists:
            setattr(parent, name, layers)


def _layer_lists(module: Any) -> list[tuple[nn.Module, str, nn.ModuleList]]:
    """Return every list with one module per layer, with its place."""
    num_layers = module.config.get_text_config().num_hidden_layers
    return [
        (parent, name, child)
        for parent in module.modules()
        for name, child in parent.named_children()
        if isinstance(child, nn.ModuleList) and len(child) == num_layers
    ]


def _settings(layer: nn.Module) -> Hashable:
    """Return what a layer consists of, apart from its number and its weights."""
    return tuple(
        (name, type(part).__name__, tuple(sorted(_scalars(part).items())))
        for name, part in layer.named_modules()
    )


def _scalars(part: nn.Module) -> dict[str, str]:
    return {
        name: repr(value)
        for name, value in vars(part).items()
        if isinstance(value, int | float | str | None) and name not in ("layer_idx", "layer_id", "training")
    }
