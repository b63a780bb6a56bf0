"""A model cut down to its first layers, for checks that need one layer of each sort but not all of them."""

from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from copy import deepcopy
from functools import partial
from typing import Any

from torch import Tensor, nn

from kvchat.engine.formats.spec import Group
from kvchat.engine.kernels.decoder_layers.reference import dense
from kvchat.engine.models.hook import AttentionLayer, attach
from kvchat.engine.models.linear.packed import InterleavedLinear, PackedLinear, WidenedLinear
from kvchat.engine.models.linear.quantized import QuantizedLinear
from kvchat.engine.models.probing.decoder_structure import match_linear, router_and_experts

LEAST = 2
LINEARS = (nn.Linear, PackedLinear, InterleavedLinear, WidenedLinear, QuantizedLinear)
_PRODUCTS = {kind.forward for kind in LINEARS}
"""What a layer does that is a product and nothing else: a router that is a linear layer too does more."""


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


def float_copy(layer: nn.Module, behind: AttentionLayer) -> nn.Module:
    """Return a copy of a layer with plain weights in float32 and `behind` at its attention. Of experts it has
    the first ones, one more than a token goes through.
    """
    known: dict[int, Any] = {
        id(part): _float_linear(part) for part in layer.modules() if isinstance(part, LINEARS)
    }
    for part in layer.modules():
        # What belongs to the whole model is shared.
        known |= {
            id(value): value for name, value in vars(part).items() if name.startswith(("config", "kvchat"))
        }
    experts = router_and_experts(layer)
    if experts is not None:
        known |= _few_experts(*experts)
    copy = deepcopy(layer, known).float()
    for part in router_and_experts(copy) or ():
        part.num_experts = len(part.weight if hasattr(part, "weight") else part.down_proj)
    attach(copy, behind)
    return copy


def _few_experts(router: Any, experts: Any) -> dict[int, nn.Parameter]:
    """Return the parameters of the first experts by the identity of all: all may be too many in float32."""
    number = router.top_k + 1
    cut = (router.weight, experts.gate_up_proj, experts.down_proj)
    return {id(one): nn.Parameter(one[:number].float(), requires_grad=False) for one in cut}


def _float_linear(layer: nn.Module) -> nn.Linear:
    matched = match_linear(layer)
    weight, bias = dense(matched.weight), matched.bias
    plain = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, device="meta")
    plain.weight = nn.Parameter(weight, requires_grad=False)
    if bias is not None:
        plain.bias = nn.Parameter(bias.detach().float(), requires_grad=False)
    return plain


@contextmanager
def without_products(module: nn.Module) -> Iterator[None]:
    """Let no linear layer of a model compute inside the context; none of their weights is touched."""
    with ExitStack() as replaced:
        for part in module.modules():
            if not isinstance(part, LINEARS) or "forward" in vars(part):
                continue
            if type(part).forward in _PRODUCTS:
                part.forward = partial(_zeros, part.out_features)  # type: ignore[method-assign]
                replaced.callback(delattr, part, "forward")
        yield


def _zeros(num_outputs: int, x: Tensor) -> Tensor:
    return x.new_zeros(*x.shape[:-1], num_outputs)
