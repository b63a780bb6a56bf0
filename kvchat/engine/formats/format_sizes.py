"""Size of a conversation in each cache format, from a model's config alone: no weights, no torch.

Whole blocks are counted, as pools hold them, and all metadata.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from kvchat.engine.api.cache_format import parse_cache_format
from kvchat.engine.api.config import BLOCK_SIZE, CACHE_FORMATS
from kvchat.engine.api.view import PRUNING, PYRAMID, SHADOW, SNAPKV, WINDOW
from kvchat.engine.formats.full.spec import FullSpec
from kvchat.engine.formats.groups_in_format import stored_groups
from kvchat.engine.formats.kv_size import AttentionShape
from kvchat.engine.formats.latent.spec import latent_spec
from kvchat.engine.formats.shadow.memory import beside_bytes
from kvchat.engine.formats.sliding.spec import SlidingSpec
from kvchat.engine.formats.spec import CacheSpec, Group, group_layers
from kvchat.engine.formats.view_schedule import ViewSchedules
from kvchat.errors import ConfigError

FORMATS = (*CACHE_FORMATS, WINDOW, *PRUNING, f"{SNAPKV}:{PYRAMID}", SHADOW)
_DTYPES = {"float32": "F32", "bfloat16": "BF16", "float16": "F16"}


@dataclass(frozen=True, slots=True, kw_only=True)
class FormatSize:
    """A conversation in one format.

    Args:
        context_bytes: of all its tokens, read as one prompt.
        is_exact: whether answers are; approximate otherwise.
        beside_bytes: of these, what a processor keeps beside the blocks at most.
    """

    name: str
    context_bytes: int
    is_exact: bool
    beside_bytes: int = 0


def format_sizes(
    shape: AttentionShape, context_len: int, wanted: Sequence[str] = ()
) -> tuple[FormatSize, ...]:
    """Return the formats that a model of this shape can be stored in, `exact` first.

    Args:
        wanted: these alone behind it; else the usual ones.

    Raises:
        ConfigError: one that is wanted is no format, or none for this model.
    """
    groups = group_layers({layer: _spec(shape, most) for layer, most in enumerate(shape.visible)})
    sizes: list[FormatSize] = []
    for text in dict.fromkeys((FORMATS[0], *(wanted or FORMATS))):
        found = parse_cache_format(text)
        try:
            stored = stored_groups(groups, text, BLOCK_SIZE)
        except ConfigError:
            if wanted:
                raise
            continue  # the model keeps something that has no such form
        beside = beside_bytes(stored, context_len)
        sizes.append(
            FormatSize(
                name=str(found),
                context_bytes=_held_bytes(stored, context_len) + beside,
                is_exact=found.is_exact,
                beside_bytes=beside,
            )
        )
    return tuple(sizes)


def _spec(shape: AttentionShape, most: int | None) -> CacheSpec:
    dtype = _DTYPES[shape.dtype]
    if shape.latent is not None:
        return latent_spec(shape.latent.rank, shape.latent.rope_dim, "", dtype)
    heads = {"num_kv_heads": shape.num_kv_heads, "head_dim_k": shape.dim_k, "head_dim_v": shape.dim_v}
    if most is None:
        return FullSpec(**heads, dtype=dtype)
    return SlidingSpec(**heads, dtype=dtype, window_len=most)


def _held_bytes(groups: tuple[Group, ...], num_tokens: int) -> int:
    view_schedule = ViewSchedules(groups, BLOCK_SIZE).of("plan", "", num_tokens)
    return sum(
        len(view_schedule.numbers(group, num_tokens, BLOCK_SIZE)) * group.block_bytes(BLOCK_SIZE)
        for group in groups
    )
