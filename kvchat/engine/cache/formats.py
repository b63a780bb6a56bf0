"""In which formats KV can be stored: one row for each, and what a layer keeps in it.

A format is data. It turns what a layer keeps by itself into what is stored of it; everything else (bytes,
pools, files, the backend that reads and writes) is looked up from that spec. Names come from
`engine/api/config.py`; a format is part of the fingerprint, so its blocks are named apart from all others.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from kvchat.engine.api.config import CACHE_FORMATS
from kvchat.engine.cache.spec import Fp8LatentSpec, FullSpec, Group, LatentSpec
from kvchat.engine.kernels.fp8_record import Fp8Record
from kvchat.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheFormat:
    """One way to store KV.

    Args:
        is_exact: whether what is read is what was computed.
        stored: spec of a layer → spec of what is stored of it; None: the format has no form for such a layer.
        stores: which layers it has a form for, in words.
    """

    is_exact: bool
    stored: Callable[[FullSpec], FullSpec | None]
    stores: str


def cache_format(name: str) -> CacheFormat:
    """Return the format of this name.

    Raises:
        ConfigError: there is none.
    """
    if name not in FORMATS:
        raise ConfigError(f"cache format '{name}' is unknown; use {' or '.join(FORMATS)}")
    return FORMATS[name]


def stored_groups(groups: Sequence[Group], name: str) -> tuple[Group, ...]:
    """Return the groups of a model as the format `name` stores them.

    Raises:
        ConfigError: there is no such format, or it has no form for a layer of this model.
    """
    form = cache_format(name)
    return tuple(replace(group, spec=_stored_spec(group, name, form)) for group in groups)


def _stored_spec(group: Group, name: str, form: CacheFormat) -> FullSpec:
    spec = form.stored(group.spec)
    if spec is None:
        raise ConfigError(
            f"cache format '{name}' stores {form.stores} alone, and layer {group.layers[0]} of this model is "
            f"of another kind ({group.spec.kind}); use --cache-format exact"
        )
    return spec


def _as_computed(spec: FullSpec) -> FullSpec:
    return spec


def _in_fp8(spec: FullSpec) -> FullSpec | None:
    if not isinstance(spec, LatentSpec):
        return None
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


FORMATS: Mapping[str, CacheFormat] = {
    "exact": CacheFormat(is_exact=True, stored=_as_computed, stores="layers of every kind"),
    "fp8": CacheFormat(is_exact=False, stored=_in_fp8, stores="latents (MLA)"),
}
assert tuple(FORMATS) == CACHE_FORMATS
