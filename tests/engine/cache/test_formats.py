"""The table of formats: what is stored of a layer is looked up from its spec."""

import pytest

from kvchat.engine.api.config import CACHE_FORMATS
from kvchat.engine.api.ids import GroupId
from kvchat.engine.cache.arithmetic import Latent
from kvchat.engine.cache.formats import FORMATS, cache_format, stored_groups
from kvchat.engine.cache.spec import Fp8LatentSpec, FullSpec, Group, LatentSpec, SlidingSpec
from kvchat.errors import ConfigError

pytestmark = pytest.mark.pure

FULL = FullSpec(num_kv_heads=2, head_dim_k=16, head_dim_v=16, dtype="BF16")
SLIDING = SlidingSpec(num_kv_heads=2, head_dim_k=16, head_dim_v=16, dtype="BF16", window_len=40)
LATENT = LatentSpec(
    num_kv_heads=1, head_dim_k=576, head_dim_v=0, dtype="BF16", rank=512, rope_dim=64, rope_layout="halves"
)


def group_of(spec: FullSpec) -> Group:
    return Group(id=GroupId(0), spec=spec, layers=(0, 1))


def test_every_name_has_a_row_and_every_row_a_name() -> None:
    assert tuple(FORMATS) == CACHE_FORMATS


@pytest.mark.parametrize("spec", [FULL, SLIDING, LATENT])
def test_the_exact_format_stores_what_was_computed(spec: FullSpec) -> None:
    assert cache_format("exact").is_exact
    assert stored_groups([group_of(spec)], "exact") == (group_of(spec),)


def test_fp8_packs_a_latent_into_its_record() -> None:
    assert not cache_format("fp8").is_exact
    (group,) = stored_groups([group_of(LATENT)], "fp8")
    assert isinstance(group.spec, Fp8LatentSpec)
    assert (group.spec.token_bytes, group.block_bytes(64)) == (656, 2 * 64 * 656)
    assert group.spec.rope_layout == "halves"
    assert group.spec.token_bytes == Latent(rank=512, rope_dim=64).fp8_bytes


@pytest.mark.parametrize("spec", [FULL, SLIDING])
def test_a_format_without_a_form_for_a_layer_is_refused(spec: FullSpec) -> None:
    with pytest.raises(ConfigError, match="use --cache-format exact"):
        stored_groups([group_of(LATENT), group_of(spec)], "fp8")


def test_an_unknown_format_is_refused() -> None:
    with pytest.raises(ConfigError, match="'fp9' is unknown; use exact or fp8"):
        cache_format("fp9")
