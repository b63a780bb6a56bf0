"""What is stored of a layer in each format."""

import pytest

from kvchat.engine.api.ids import GroupId
from kvchat.engine.formats.fp8_latent.spec import Fp8LatentSpec
from kvchat.engine.formats.full.spec import FullSpec
from kvchat.engine.formats.groups_in_format import stored_groups
from kvchat.engine.formats.kv_size import Latent
from kvchat.engine.formats.latent.spec import latent_spec
from kvchat.engine.formats.quantized.spec import QuantizedSpec, ResidualSpec
from kvchat.engine.formats.sliding.spec import SlidingSpec
from kvchat.engine.formats.spec import CacheSpec, Group, group_layers
from kvchat.errors import ConfigError

pytestmark = pytest.mark.pure

P = 64
FULL = FullSpec(num_kv_heads=2, head_dim_k=128, head_dim_v=128, dtype="BF16")
SLIDING = SlidingSpec(num_kv_heads=2, head_dim_k=128, head_dim_v=128, dtype="BF16", window_len=40)
LATENT = latent_spec(512, 64, "halves", "BF16")


def group_of(spec: CacheSpec) -> Group:
    return Group(id=GroupId(0), spec=spec, layers=(0, 1))


@pytest.mark.parametrize("spec", [FULL, SLIDING, LATENT])
def test_the_exact_format_stores_what_was_computed(spec: CacheSpec) -> None:
    assert stored_groups([group_of(spec)], "exact", P) == (group_of(spec),)


def test_fp8_packs_a_latent_into_its_record() -> None:
    (group,) = stored_groups([group_of(LATENT)], "fp8", P)
    assert isinstance(group.spec, Fp8LatentSpec)
    assert (group.spec.token_bytes, group.block_bytes(P)) == (656, 2 * 64 * 656)
    assert group.spec.rope_layout == "halves"
    assert group.spec.token_bytes == Latent(rank=512, rope_dim=64).fp8_bytes


@pytest.mark.parametrize(("code", "most"), [("fp8", 8.3), ("int8", 8.3), ("int4", 5.1), ("int2", 3.1)])
def test_a_full_layer_keeps_recent_blocks_and_quantized_ones(code: str, most: float) -> None:
    recent, quantized = stored_groups([group_of(FULL)], code, P)
    assert isinstance(recent.spec, ResidualSpec)
    assert isinstance(quantized.spec, QuantizedSpec)
    assert (recent.layers, quantized.layers, quantized.source) == ((0, 1), (0, 1), recent.id)
    assert (recent.block_bytes(P), quantized.spec.kind) == (group_of(FULL).block_bytes(P), code)
    assert 8 * quantized.block_bytes(P) / (2 * 2 * 2 * 128 * P) <= most


def test_layers_of_other_forms_are_in_other_groups() -> None:
    groups = group_layers(dict.fromkeys(range(6), FULL), {6: 5})
    found = stored_groups(groups, "k=int8,v=int4; layers 0-1=exact; layers 3=int2", P)
    assert [(group.spec.kind, group.layers, group.source) for group in found] == [
        ("full", (0, 1), None),
        ("recent", (2, 3, 4, 5), None),
        ("k=int8,v=int4", (2, 4, 5), 1),
        ("int2", (3,), 1),
    ]
    assert [group.id for group in found] == [0, 1, 2, 3]
    assert found[1].borrowers == ((6, 5),)


def test_layers_with_a_window_stay_exact() -> None:
    """Trap 20: a format is for the layers that it has a form for, not for a model as a whole."""
    groups = group_layers({0: SLIDING, 1: FULL})
    assert [group.spec.kind for group in stored_groups(groups, "int4", P)] == ["sliding", "recent", "int4"]
    with pytest.raises(ConfigError, match="layer 0 has a window"):
        stored_groups(groups, "exact; layers 0=int4", P)
    with pytest.raises(ConfigError, match="all of them have a window"):
        stored_groups([group_of(SLIDING)], "int4", P)


def test_the_reason_why_nothing_would_be_quantized_is_the_one_that_holds() -> None:
    with pytest.raises(ConfigError, match="named as exact") as refused:
        stored_groups([group_of(FULL)], "int8; layers 0-1=exact", P)
    assert "all of them have a window" not in str(refused.value)


def test_layers_of_more_digits_than_a_number_has_are_refused() -> None:
    for layers in ("9" * 5000, f"0-{'9' * 5000}"):
        with pytest.raises(ConfigError, match="names no layers") as refused:
            stored_groups([group_of(FULL)], f"int8; layers {layers}=exact", P)
        assert len(str(refused.value)) < 200


def test_a_layer_that_is_not_there_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"'layers 1-2=exact' names layers .* its last one is 1"):
        stored_groups([group_of(FULL)], "int4; layers 1-2=exact", P)


@pytest.mark.parametrize("code", ["int8", "int4", "int2", "k=fp8,v=int8"])
def test_latents_have_no_form_but_fp8(code: str) -> None:
    """Trap 20."""
    with pytest.raises(
        ConfigError, match=r"no form for layer 0 of this model \(latent\); use --cache-format fp8 or exact"
    ):
        stored_groups([group_of(LATENT)], code, P)
    mixed = group_layers({0: LATENT, 1: FULL})
    assert [group.spec.kind for group in stored_groups(mixed, "fp8", P)] == ["latent fp8", "recent", "fp8"]
    assert [group.spec.kind for group in stored_groups(mixed, "int4; layers 0=fp8", P)] == [
        "latent fp8",
        "recent",
        "int4",
    ]


@pytest.mark.parametrize("num_tokens", range(0, 300, 7))
def test_every_position_is_either_exact_or_quantized(num_tokens: int) -> None:
    """What a query at the next position sees: no block twice, none left out, 64 to 127 tokens exact."""
    recent, quantized = stored_groups([group_of(FULL)], "int8", P)
    first = recent.spec.first_visible(num_tokens)
    assert first == P * quantized.num_blocks(num_tokens, P)
    assert num_tokens < 2 * P or P <= num_tokens - first < 2 * P
