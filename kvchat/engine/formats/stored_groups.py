"""Specs by storage format.

A format is data. It turns what a layer keeps by itself into what is stored of it; everything else (bytes,
pools, files, the backend that reads and writes) is looked up from that spec. How formats are named and
written is said in `engine/api/cache_format.py`; a format is part of the fingerprint, so its blocks are named
apart from all others.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from kvchat.engine.api.cache_format import CacheFormat, SideFormat, parse_cache_format
from kvchat.engine.api.ids import GroupId
from kvchat.engine.formats.apply_view import viewed_groups
from kvchat.engine.formats.fp8_latent.spec import Fp8LatentSpec
from kvchat.engine.formats.latent.spec import LatentSpec
from kvchat.engine.formats.quantized.spec import QuantizedSpec, ResidualSpec
from kvchat.engine.formats.spec import CacheSpec, Group, group_layers
from kvchat.engine.kernels.fp8_record import Fp8Record
from kvchat.engine.kernels.quantized_record import Code
from kvchat.errors import ConfigError


@dataclass(frozen=True, slots=True)
class _Stored:
    """What is stored of one layer: what its tokens are written to, and what of it becomes quantised."""

    spec: CacheSpec
    quantized: QuantizedSpec | None = None


def stored_groups(groups: Sequence[Group], text: str, block_size: int) -> tuple[Group, ...]:
    """Return the groups of a model as a format stores them: first those that tokens are written to, then
    those of quantised blocks.

    Raises:
        ConfigError: there is no such format, or it has no form for a layer of this model.
    """
    form = parse_cache_format(text)
    if form.is_exact:
        return tuple(groups)
    if form.view is not None:
        return viewed_groups(groups, form.view, block_size)
    specs = {layer: group.spec for group in groups for layer in group.layers}
    _require_layers(form, specs)
    stored = {layer: _stored(layer, spec, form, block_size) for layer, spec in specs.items()}
    if all(stored[layer] == _Stored(spec) for layer, spec in specs.items()):
        raise ConfigError(
            f"cache format '{form}' would store this model's layers as they are: {_why_exact(specs)}; use "
            "--cache-format exact"
        )
    borrowed = {layer: lender for group in groups for layer, lender in group.borrowers}
    written = group_layers({layer: one.spec for layer, one in stored.items()}, borrowed)
    group_of = {layer: group.id for group in written for layer in group.layers}
    quantized = group_layers(
        {layer: one.quantized for layer, one in stored.items() if one.quantized is not None}
    )
    return written + tuple(
        replace(group, id=GroupId(len(written) + group.id), source=group_of[group.layers[0]])
        for group in quantized
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


def _stored(layer: int, spec: CacheSpec, form: CacheFormat, block_size: int) -> _Stored:
    own = form.form_of(layer)
    if own.is_exact:
        return _Stored(spec)
    if isinstance(spec, LatentSpec):
        return _Stored(_latent(layer, spec, own))
    if spec.max_visible is not None:
        if form.is_named(layer):
            raise ConfigError(f"cache format: layer {layer} has a window ({spec.kind}) and stays exact")
        return _Stored(spec)
    return _quantized(spec, own, block_size)


def _quantized(spec: CacheSpec, form: SideFormat, block_size: int) -> _Stored:
    heads = {"num_kv_heads": spec.num_kv_heads, "head_dim_k": spec.head_dim_k, "head_dim_v": spec.head_dim_v}
    return _Stored(
        ResidualSpec(**heads, dtype=spec.dtype, block_size=block_size),
        QuantizedSpec(
            **heads,
            dtype="U8",
            key_code=Code(form.key),
            value_code=Code(form.value),
            block_size=block_size,
        ),
    )


def _latent(layer: int, spec: LatentSpec, form: SideFormat) -> Fp8LatentSpec:
    if form != SideFormat("fp8", "fp8"):
        raise ConfigError(
            f"cache format '{form}' has no form for latents (MLA), which layer {layer} of this model keeps: "
            "a latent is key and value of all heads at once, and other codes leave too little of it; use "
            "--cache-format fp8 or exact"
        )
    record = Fp8Record(spec.rank, spec.rope_dim)
    return Fp8LatentSpec(
        num_kv_heads=1,
        head_dim_k=record.num_bytes,
        head_dim_v=0,
        dtype="U8",
        rank=spec.rank,
        rope_dim=spec.rope_dim,
        rope_layout=spec.rope_layout,
    )
