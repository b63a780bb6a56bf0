"""DeepSeek's models keep latents, never expand a whole context, and answer as transformers does."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from transformers.cache_utils import DynamicCache

from kvchat.engine.api.ids import BlockId, RequestId, SequenceId
from kvchat.engine.cache.block_operations import TableChange
from kvchat.engine.formats.format_table import PagedAttention, metadata_builders
from kvchat.engine.formats.groups_in_format import stored_groups
from kvchat.engine.formats.latent.spec import latent_spec
from kvchat.engine.forward.activation_memory import peak_bytes
from kvchat.engine.forward.model_pass import PackedPass
from kvchat.engine.forward.model_route import Route, choose_route
from kvchat.engine.forward.runner import ForwardPass, Runner
from kvchat.engine.kernels.latent_attention import torch_fallback
from kvchat.engine.memory.device_pool import DevicePool
from kvchat.engine.models.hook import set_implementation
from kvchat.engine.models.latent import LatentLayer, latent_layers
from kvchat.engine.models.load import load_model
from kvchat.engine.models.probing.latent_rope_layout import FIRSTS_THEN_SECONDS
from kvchat.engine.sequences.batch_plan import Batch, Chunk
from tests.engine.conftest import OpenEngine
from tests.engine.latent_models import KINDS, model_of
from tests.engine.tiny_models import answer, reference, token_ids

pytestmark = pytest.mark.cpu

BLOCK_SIZE = 16
NUM_TOKENS = 70
TOLERANCE = 1e-5
"""Of the largest logit, in float32."""
VISIBLE = 50
"""What is easily mistaken changes logits by more than this many times the tolerance."""


def logits_of(served: Any, ids: list[int], cuts: list[int], make_pass: Any = None) -> Tensor:
    """Return the logits behind each cut and the end, by chunks on permuted blocks [cuts + 1, V]."""
    num_blocks = -(-len(ids) // BLOCK_SIZE)
    sizes = {group.id: num_blocks for group in served.groups}
    pool = DevicePool(served.groups, sizes, BLOCK_SIZE, torch.device("cpu"))
    runner = Runner((make_pass or served.make_pass)(pool), metadata_builders(served.groups, BLOCK_SIZE))
    order = torch.randperm(num_blocks, generator=torch.Generator().manual_seed(0)).tolist()
    changes = tuple(
        TableChange(SequenceId(1), group.id, 0, tuple(map(BlockId, order))) for group in served.groups
    )
    rows = []
    for start, end in zip([0, *cuts], [*cuts, len(ids)], strict=True):
        chunk = Chunk(RequestId(1), SequenceId(1), start, tuple(ids[start:end]), samples=True)
        rows.append(runner.run(Batch(chunks=(chunk,), moves=(), changes=changes, dropped=())))
        changes = ()
    return torch.cat(rows)


@dataclass(frozen=True, slots=True)
class Subject:
    """A model on our cache, and transformers' own logits [NUM_TOKENS, V] and latents for the same tokens."""

    module: Any
    served: Any
    ids: list[int]
    wanted: Tensor
    past: DynamicCache

    def distance(self, found: Tensor, ends: list[int]) -> float:
        """Return the largest difference, relative to the largest logit."""
        wanted = self.wanted[[end - 1 for end in ends]]
        return float((found - wanted).abs().max() / self.wanted.abs().max())


def subject_of(model_dir: Path) -> Subject:
    loaded = load_model(model_dir, "float32", torch.device("cpu"))
    ids, past = token_ids(NUM_TOKENS), DynamicCache()
    set_implementation(loaded.module, "eager")
    with torch.inference_mode():
        out = loaded.module(torch.tensor([ids]), use_cache=True, past_key_values=past)
    return Subject(loaded.module, choose_route(loaded), ids, out.logits[0], past)


@pytest.fixture(scope="module", params=KINDS)
def subject(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Subject:
    return subject_of(model_of(request.param, tmp_path_factory.mktemp("latent")))


@pytest.fixture
def yarn(tmp_path: Path) -> Subject:
    """A model of its own, for tests that break it; sizes are such that a wrong use of parts goes through."""
    return subject_of(model_of("V3, YaRN", tmp_path, v_head_dim=12))


PATHS: dict[str, tuple[int, int]] = {
    "absorbed": (10**9, 2048),
    "expanded": (1, 2048),
    "by length": (20, 2048),
    "absorbed, slices merged": (10**9, 16),
    "expanded, slices merged": (1, 16),
}
"""The fewest queries that are expanded, and the longest slice of the context."""


@pytest.mark.covering(1)
@pytest.mark.parametrize("path", PATHS)
@settings(max_examples=8)
@given(cuts=st.sets(st.integers(1, NUM_TOKENS - 1), max_size=6))
def test_logits_equal_those_of_transformers_wherever_the_prompt_is_cut(
    subject: Subject, path: str, cuts: set[int]
) -> None:
    """V2 and V3, YaRN on and off, queries compressed or not, keys and values of different sizes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch_fallback, "FEWEST_TO_EXPAND", PATHS[path][0])
        patch.setattr(torch_fallback, "MOST_ROWS", PATHS[path][1])
        found = logits_of(subject.served, subject.ids, sorted(cuts))
    assert subject.served.route is Route.LATENT
    assert subject.distance(found, [*sorted(cuts), NUM_TOKENS]) <= TOLERANCE


def test_what_is_kept_are_the_latents_of_transformers_own_cache(subject: Subject) -> None:
    num_blocks = -(-NUM_TOKENS // BLOCK_SIZE)
    (group,) = subject.served.groups
    pools = []

    def make_pass(pool: DevicePool) -> ForwardPass:
        pools.append(pool)
        made: ForwardPass = subject.served.make_pass(pool)
        return made

    logits_of(subject.served, subject.ids, [], make_pass)
    order = torch.randperm(num_blocks, generator=torch.Generator().manual_seed(0))
    for layer in group.layers:
        kept = pools[0].layers[layer].keys[order, 0].flatten(0, 1)[:NUM_TOKENS]
        theirs = subject.past.layers[layer]
        wanted = torch.cat([theirs.keys, theirs.values], dim=3)[0, 0]
        # The first layer computes them from the same numbers, the others behind another order of sums.
        allowed = 0.0 if layer == group.layers[0] else TOLERANCE * float(wanted.abs().max())
        torch.testing.assert_close(kept, wanted, rtol=0, atol=allowed)


@pytest.mark.parametrize("kind", ["V2, YaRN", "V3, queries compressed"])
def test_answers_equal_those_of_generate_also_behind_a_prefix(
    kind: str, tmp_path: Path, open_engine: OpenEngine
) -> None:
    model_dir = model_of(kind, tmp_path)
    engine = open_engine(model_dir, max_batch_tokens=30)
    assert answer(engine, token_ids(50), 12).token_ids == reference(model_dir).answer(token_ids(50), 12)
    again = token_ids(50)[:37] + token_ids(20, seed=1)
    result = answer(engine, again, 12)
    assert result.usage.cached_tokens == 37
    assert result.token_ids == reference(model_dir).answer(again, 12)


def test_a_token_takes_one_latent_and_one_rope_key_per_layer(tmp_path: Path, open_engine: OpenEngine) -> None:
    engine = open_engine(model_of("V3", tmp_path))
    (group,) = engine.snapshot().groups
    assert group.kind == "latent"
    loaded = load_model(tmp_path / "model", "float32", torch.device("cpu"))
    (served,) = choose_route(loaded).groups
    assert served.spec == latent_spec(16, 8, FIRSTS_THEN_SECONDS, "F32")
    assert served.block_bytes(1) == 3 * (16 + 8) * 4
    pool = DevicePool([served], {served.id: 2}, BLOCK_SIZE, torch.device("cpu"))
    assert [(region.name, region.shape) for region in pool.layouts()[served.id]] == [
        (f"layers.{layer}.k", (1, BLOCK_SIZE, 24)) for layer in range(3)
    ]


# Negative controls: what is easily mistaken in latent attention changes the logits.


def broken(subject: Subject) -> float:
    return subject.distance(logits_of(subject.served, subject.ids, []), [NUM_TOKENS])


@pytest.mark.parametrize("scale", [24**-0.5, 20**-0.5], ids=["of the latent's size", "without YaRN's square"])
def test_a_wrong_scale_would_show(yarn: Subject, scale: float) -> None:
    for layer in yarn.module.model.layers:
        assert layer.self_attn.scaling > 1.01 * 20**-0.5
        layer.self_attn.scaling = scale
    assert broken(yarn) > VISIBLE * TOLERANCE


def test_rope_keys_turned_by_halves_would_show(yarn: Subject) -> None:
    yarn.module.config.rope_interleave = False
    assert broken(yarn) > VISIBLE * TOLERANCE


def test_latents_kept_before_their_norm_would_show(yarn: Subject) -> None:
    for layer in yarn.module.model.layers:
        layer.self_attn.kv_a_layernorm = nn.Identity()
    assert broken(yarn) > VISIBLE * TOLERANCE


class _Exchanged:
    """A projection whose keys and values have changed places."""

    def __init__(self, layer: LatentLayer) -> None:
        self.k_up, self.v_up = layer.v_up, layer.k_up


def test_exchanged_projections_would_show(yarn: Subject) -> None:
    right: Mapping[int, LatentLayer] = latent_layers(yarn.module)
    wrong = {layer: _Exchanged(latent) for layer, latent in right.items()}

    def make_pass(projections: Any) -> Any:
        return lambda pool: PackedPass(yarn.module, PagedAttention(pool.layers, projections=projections))

    def distance(projections: Any) -> float:
        found = logits_of(yarn.served, yarn.ids, [], make_pass(projections))
        return yarn.distance(found, [NUM_TOKENS])

    assert distance(right) <= TOLERANCE
    assert distance(wrong) > VISIBLE * TOLERANCE


@pytest.mark.parametrize("cache_format", ["exact", "fp8"])
def test_a_decode_step_never_expands_the_context(cache_format: str, tmp_path: Path) -> None:
    """Against keys and values of all heads, which transformers makes in every layer of every step.

    Nor is a whole context ever unpacked, where latents are stored in 8 bits.
    """
    changes = {
        "num_attention_heads": 32,
        "num_key_value_heads": 32,
        "max_position_embeddings": 32_768,
        "kv_lora_rank": 64,
    }
    loaded = load_model(model_of("V3", tmp_path, **changes), "float32", torch.device("cpu"))
    served = choose_route(loaded)
    served = replace(served, groups=stored_groups(served.groups, cache_format, BLOCK_SIZE))
    length = 32_768
    pool = DevicePool(
        served.groups,
        {group.id: length // BLOCK_SIZE for group in served.groups},
        BLOCK_SIZE,
        torch.device("cpu"),
    )
    for layer in pool.layers.values():
        layer.keys.zero_()
    runner = Runner(served.make_pass(pool), metadata_builders(served.groups, BLOCK_SIZE))
    table = tuple(map(BlockId, range(length // BLOCK_SIZE)))
    changes_of = tuple(TableChange(SequenceId(1), group.id, 0, table) for group in served.groups)
    chunk = Chunk(RequestId(1), SequenceId(1), length - 1, (5,), samples=True)
    batch = Batch(chunks=(chunk,), moves=(), changes=changes_of, dropped=())
    expanded = length * 32 * (12 + 8 + 20) * 4
    assert peak_bytes(lambda: runner.run(batch)) < 0.02 * expanded
